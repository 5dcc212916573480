/* measure/ruler_words.h - words of our own for the texts of ruler: a name is one of the first list and one of the second. */
#ifndef TN_MEASURE_RULER_WORDS_H
#define TN_MEASURE_RULER_WORDS_H

enum { TN_RULER_WORDS = 100 };

static const char *const tn_ruler_first[TN_RULER_WORDS] = {
    "amber",   "ancient", "ashen",   "autumn",  "bitter",  "blazing", "bold",    "brave",  "brief",  "bright",
    "broken",  "bronze",  "calm",    "careful", "chilly",  "clever",  "cloudy",  "cold",   "copper", "coral",
    "crimson", "curious", "dapper",  "daring",  "dawn",    "deep",    "distant", "dusty",  "eager",  "early",
    "earnest", "eastern", "easy",    "elder",   "empty",   "faded",   "faint",   "fierce", "fleet",  "floral",
    "foggy",   "fond",    "frosty",  "gentle",  "giant",   "glad",    "golden",  "grand",  "grassy", "gray",
    "happy",   "hasty",   "heavy",   "hidden",  "hollow",  "honest",  "humble",  "icy",    "idle",   "indigo",
    "ivory",   "jolly",   "keen",    "kind",    "lasting", "lemon",   "little",  "lively", "lonely", "loud",
    "lucky",   "lunar",   "mellow",  "merry",   "mild",    "misty",   "modest",  "mossy",  "narrow", "noble",
    "olive",   "pale",    "patient", "plain",   "polite",  "proud",   "quick",   "quiet",  "rapid",  "rusty",
    "sandy",   "scarlet", "secret",  "silent",  "silver",  "solid",   "sunny",   "tender", "velvet", "wild"};

static const char *const tn_ruler_second[TN_RULER_WORDS] = {
    "acorn",   "anchor",  "apple",   "arrow",  "badger",  "barn",    "basket", "beacon",   "bell",
    "birch",   "boat",    "bridge",  "brook",  "button",  "cabin",   "candle", "canyon",   "castle",
    "cedar",   "cello",   "chapel",  "cherry", "cliff",   "clock",   "clover", "comet",    "compass",
    "cradle",  "crane",   "creek",   "crown",  "desert",  "dolphin", "drum",   "eagle",    "ember",
    "falcon",  "feather", "fern",    "fiddle", "flute",   "forest",  "fossil", "fountain", "garden",
    "glacier", "goose",   "hammer",  "harbor", "harp",    "hazel",   "hedge",  "heron",    "hill",
    "island",  "jacket",  "jungle",  "kettle", "kite",    "ladder",  "lagoon", "lantern",  "lark",
    "lake",    "leaf",    "lily",    "marble", "meadow",  "mirror",  "moon",   "mountain", "needle",
    "nest",    "oasis",   "orchard", "otter",  "owl",     "paddle",  "pebble", "pepper",   "piano",
    "pillow",  "pine",    "planet",  "pond",   "prairie", "quarry",  "rabbit", "raven",    "reef",
    "river",   "robin",   "rocket",  "saddle", "sparrow", "spruce",  "stone",  "tower",    "valley",
    "willow"};

#endif
