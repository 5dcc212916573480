"""The data: documents of a made-up personal device with questions, and plain English.

Every name, time, code and amount is drawn from a space far larger than the model can store, so an answer can
only be found by looking it up in the document. A split is a seed: `Maker(split, n)` never shares one with another.
"""
import json
import random
import re

# fmt: off
FIRST = """Ada Agnes Akira Alan Alba Aldo Alice Amara Amir Anders Anita Anton Arun Astrid Aya Basil Bea Boris Bruno Carla Carmen
Cedric Chen Clara Cora Dana Darius David Diego Dora Edith Elena Elias Elsa Emil Emma Enzo Erik Esther Eva Farah Felix Fiona
Franz Freya Gaia Gina Grace Greta Hana Hans Hassan Helen Henry Hugo Ida Igor Ines Irene Isaac Ivan Jack Jana Jonas Julia
Kai Karim Kate Kira Lars Laura Leo Lena Lin Lola Lucas Lydia Magnus Maria Marta Max Mei Milan Mina Mira Nadia Nico Nina Noah
Nora Olga Omar Oscar Otto Paula Pedro Petra Priya Rafael Ravi Rita Robin Rosa Ruth Sam Sara Selma Simon Sofia Stefan Tara
Theo Tomas Uma Vera Victor Wanda Wei Yara Yusuf Zara Zoe""".split()
SYL_A = "Bal Ber Bran Cal Car Dal Del Dor El Fal Fen Gar Gol Hal Har Hol Jen Kal Kel Kor Lan Lin Lor Mal Mar Mer Mor Nel Nor Ol Par Pel Por Quin Ran Ros San Sel Sol Tal Tor Val Ver Vol Wel Win Yar Zan".split()
SYL_B = "a e i o an en in or ar el ba da di ga ka la li lo ma mi na ni ra ri ro sa ta ti va vi".split()
SYL_C = "berg bury by den der dorf far feld field ford gate ham ken land ley lund mann mark mer mont more nas ner ney rick ridge ros son sted stein ston ter ton vale vic ville well wick wood worth".split()
ADJ = "amber ancient azure bold brave bright calm clever cold copper coral crimson dark deep distant dusty early eager frozen gentle golden grand green happy hidden hollow honest humble icy jade kind late light little lively lone lucky mellow misty modern narrow noble north olive pale patient plain proud purple quick quiet rapid red royal rusty sandy sharp shiny silent silver simple slow smooth soft solid south steep stone sunny sweet swift tall tidy tiny vast violet warm west white wild wise young".split()
NOUN = "anchor apple arrow badger basket beacon bell bird boat bottle branch bridge brook bucket button cabin camel candle canyon castle cedar chair cherry cliff cloud clover comet coral cradle crane creek crown daisy desert dragon drum eagle ember engine falcon feather fern field flame flute forest fountain fox garden gate glacier hammer harbor hawk hill honey horizon island ivy jacket jungle kettle kite ladder lake lamp lantern leaf lemon lily lion maple marble meadow mirror moon mountain needle oak ocean orchard otter owl paddle panther pearl pebble pepper piano pine planet pocket pond prairie quilt rabbit raven ribbon river rocket rose saddle sail shadow shell shore spark sparrow spring star stone storm stream summit sun table temple thunder tiger timber tower trail train tulip tunnel turtle valley village violin wagon walnut water whale wheel willow window winter wolf wren".split()
PLACE = "office flat garage cellar studio clinic library workshop cottage school hotel gym warehouse lab boathouse bakery".split()
THINGS = ["door code", "alarm code", "locker number", "parking spot", "booking number", "invoice number", "account number", "order number",
          "gate code", "meter reading", "serial number", "ticket number", "customer number", "safe code"]
WORDY = ["wifi password", "network name", "pass phrase", "backup word", "project name", "guest login"]
EVENT_A = "budget team design weekly project hiring garden safety sales travel music school dental yoga client board quarterly reading product contract press research".split()
EVENT_B = "review meeting call lunch workshop visit planning interview session check training dinner briefing lesson".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
TOPIC_A = "invoice contract report draft budget schedule delivery repair booking survey catalogue manual proposal permit rental shipment".split()
VERBS = "bring send check collect return order print sign clean book repair water copy review pack count deliver move label paint".split()
APPS = "Mail Calendar Notes Music Photos Maps Clock Weather Contacts Files Camera Wallet Health Books Recorder Settings".split()
UI_TEXT = ["Save", "Cancel", "Delete", "Share", "Edit", "Search", "Sort by", "More options", "Add contact", "New note", "Rename", "Mark as read",
           "Archive", "Reply", "Forward", "Download", "Upload", "Copy link", "Select all", "Turn on", "Turn off", "Export", "Import", "Undo",
           "Print", "Play", "Pause", "Next", "Previous", "Add to favourites", "Create folder", "Send", "Block", "Mute", "Pin", "Help", "Sign out"]
APIS = [
    ("send_message", ["to", "text"], "send a text message", 'Send a message to {to} saying "{text}"'),
    ("send_mail", ["to", "subject", "body"], "send a mail", 'Mail {to} with the subject "{subject}" and the text "{body}"'),
    ("create_event", ["title", "day", "time", "place"], "add an event to the calendar", 'Put "{title}" into my calendar on {day} at {time} in {place}'),
    ("set_alarm", ["time", "label"], "set an alarm", 'Wake me at {time} with the label "{label}"'),
    ("set_timer", ["minutes", "label"], "start a timer", 'Start a timer of {minutes} minutes called "{label}"'),
    ("call_number", ["number"], "call a phone number", "Call the number {number}"),
    ("add_contact", ["name", "phone", "city"], "create a contact", "Create a contact for {name} in {city} with the phone {phone}"),
    ("create_note", ["title", "text"], "write a note", 'Write a note called "{title}" that says "{text}"'),
    ("play_song", ["title", "artist"], "play music", 'Play the song "{title}" by {artist}'),
    ("navigate_to", ["address", "mode"], "start navigation", "Take me to {address} by {mode}"),
    ("search_web", ["query"], "search the web", 'Search the web for "{query}"'),
    ("pay_bill", ["receiver", "amount", "reference"], "make a payment", "Pay {amount} to {receiver} with the reference {reference}"),
    ("open_file", ["path"], "open a file", "Open the file {path}"),
    ("book_table", ["place", "people", "time"], "reserve a table", "Book a table at {place} for {people} people at {time}"),
    ("rename_file", ["path", "name"], "rename a file", "Rename the file {path} to {name}"),
    ("translate_text", ["text", "language"], "translate a text", 'Translate "{text}" into {language}'),
]
LANGS = "German French Spanish Italian Polish Dutch Swedish Turkish Greek Danish".split()
# fmt: on

SPLIT_SEED = {"train": 1_000_003, "valid": 2_000_003, "test": 3_000_017}


class English:
    """Plain English by split: stories and plays 90/5/5 %, wiki 94/3/3 %, by position."""

    def __init__(self, folder):
        with open(f"{folder}/tinystories_1000.json", encoding="utf-8") as f:
            stories = [s.strip() for s in json.load(f)]
        wiki = wikitext_clean(open(f"{folder}/wikitext2_train_part.txt", encoding="utf-8").read())
        w1, w2 = int(len(wiki) * 0.94), int(len(wiki) * 0.97)
        plays = open(f"{folder}/tinyshakespeare.txt", encoding="utf-8").read()
        cut, cut2 = int(len(plays) * 0.9), int(len(plays) * 0.95)
        self.text = {
            "train": {"stories": stories[:900], "wiki": wiki[:w1], "plays": chunks(plays[:cut])},
            "valid": {"stories": stories[900:950], "wiki": wiki[w1:w2], "plays": chunks(plays[cut:cut2])},
            "test": {"stories": stories[950:], "wiki": wiki[w2:], "plays": chunks(plays[cut2:])},
        }
        self.sentences = {s: story_sentences(self.text[s]["stories"]) for s in self.text}


def chunks(text, n=1500):
    paras, out, cur = text.split("\n\n"), [], ""
    for p in paras:
        cur += p + "\n\n"
        if len(cur) > n:
            out.append(cur.strip())
            cur = ""
    return out


def wikitext_clean(text):
    """Undo the WikiText tokenisation where it is unambiguous, drop headings and paragraphs with <unk>; articles' paragraphs."""
    text = text.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
    text = re.sub(r" ([,.;:!?)\]'%])", r"\1", text)
    text = re.sub(r"([(\[$]) ", r"\1", text)
    text = re.sub(r'" ([^"\n]*?) "', r'"\1"', text)
    return [p.strip() for p in text.split("\n") if len(p) > 150 and "<unk>" not in p and not p.strip().startswith("=")]


def story_sentences(stories):
    out = []
    for s in stories:
        for t in re.split(r"(?<=[.!?])\s+", s.replace("\n", " ")):
            if 25 <= len(t) <= 110 and '"' not in t and t[0].isupper() and t.isascii():
                out.append(t)
    return out


class Maker:
    """Draws documents and items. An item is (document, [(question, answer), ...], task)."""

    def __init__(self, split, index, english, rng=None):
        self.split = split
        self.one_wording = False  # the early curriculum asks every question in one way
        self.r = rng or random.Random(SPLIT_SEED[split] * 1_000 + index)
        self.en = english

    # ---- values -------------------------------------------------------------------------------------------------
    def pick(self, seq):
        return seq[int(self.r.random() * len(seq))]

    def ask(self, *wordings):
        return wordings[0] if self.one_wording else self.pick(wordings)

    def ask_value(self, key):
        return self.ask(f"What is the {key}?", f"What is the {key}?", f"Tell me the {key}.", f"I need the {key}.", f"Find the {key}.",
                        f"Can you look up the {key}?")

    def digits(self, lo, hi):
        n = self.r.randint(lo, hi)
        return str(self.r.randint(1, 9)) + "".join(str(int(self.r.random() * 10)) for _ in range(n - 1))

    def surname(self):
        r = self.r.random()
        return self.pick(SYL_A) + (self.pick(SYL_B) if r < 0.5 else "") + self.pick(SYL_C)

    def name(self):
        return self.pick(FIRST) + " " + self.surname()

    def names(self, n):
        """n people who differ in both names, so a first name alone is never ambiguous."""
        out, seen = [], set()
        while len(out) < n:
            a, b = self.name().split()
            if a in seen and len(seen) < len(FIRST) - 5 or b in seen:
                continue
            seen |= {a, b}
            out.append(a + " " + b)
        return out

    def phone(self):
        return f"{self.digits(3, 3)} {self.digits(3, 3)} {self.digits(2, 4)}"

    def time(self):
        return f"{self.r.randint(6, 22):02d}:{self.r.randrange(0, 60, 5):02d}"

    def date(self):
        return f"{self.r.randint(1, 28)} {self.pick(MONTHS)}"

    def amount(self):
        return f"{self.digits(2, 4)}.{self.r.randint(0, 99):02d} euros"

    def address(self):
        return f"{self.digits(1, 3)} {self.surname()} {self.pick(['Street', 'Lane', 'Road', 'Square', 'Avenue'])}"

    def code(self):
        return self.digits(4, 7)

    def phrase(self):
        return f"{self.pick(ADJ)} {self.pick(NOUN)} {self.pick(NOUN)}"

    def room(self):
        return f"room {self.pick('ABCDEFGHKLMNPRST')}{self.digits(2, 3)}"

    def task(self):
        return f"{self.pick(VERBS)} the {self.pick(ADJ)} {self.pick(NOUN)}"

    def sentence(self):
        r = self.r.random()
        if r < 0.4 and self.en:
            return self.pick(self.en.sentences[self.split])
        if r < 0.6:
            return f"Please {self.task()} before {self.time()} on {self.pick(DAYS)}."
        if r < 0.8:
            return f"We will {self.task()} with {self.name()} on {self.date()}."
        return f"The {self.pick(ADJ)} {self.pick(NOUN)} and the {self.pick(ADJ)} {self.pick(NOUN)} are now at {self.address()}."

    def message(self):
        r = self.r.random()
        if r < 0.2:
            return f"I will be at {self.address()} at {self.time()}."
        if r < 0.4:
            return f"Can you {self.task()} and {self.task()}?"
        if r < 0.6:
            return f"The code for the {self.pick(ADJ)} {self.pick(NOUN)} is {self.code()}."
        if r < 0.8:
            return f"Let us meet in {self.room()} on {self.pick(DAYS)} at {self.time()}."
        return self.sentence()

    # ---- sections: (text, [(question, answer)]) -----------------------------------------------------------------
    def contacts(self, n):
        out, qa = [], []
        style = self.r.random()
        for p in self.names(n):
            f = {"phone": self.phone(), "city": self.surname(), "birthday": self.date(), "address": self.address(),
                 "email": f"{p.split()[0].lower()}{self.digits(2, 3)}@{self.pick(NOUN)}.org"}
            keys = self.r.sample(list(f), self.r.randint(2, 3))
            if style < 0.25:
                out.append(f"Name: {p}\n" + "\n".join(f"{k[0].upper()}{k[1:]}: {f[k]}" for k in keys) + "\n")
            elif style < 0.5:
                out.append("\n".join(f"- {k} of {p}: {f[k]}" for k in keys))
            else:
                out.append("\n".join(f"The {k} of {p} is {f[k]}." for k in keys))
            qa += [(self.ask_value(f"{k} of {p}"), f"The {k} of {p} is {f[k]}.") for k in keys]
        return "Contacts\n" + "\n".join(out), qa

    def facts(self, n):
        out, qa, seen = [], [], set()
        style = self.r.random()
        while len(out) < n:
            wordy = self.r.random() < 0.3
            key = f"{self.pick(WORDY if wordy else THINGS)} of the {self.surname()} {self.pick(PLACE)}"
            if key in seen:
                continue
            seen.add(key)
            v = self.phrase() if wordy else self.code()
            out.append(f"The {key} is {v}." if style < 0.6 else f"- {key}: {v}")
            qa.append((self.ask_value(key), f"The {key} is {v}."))
        return "Notes\n" + "\n".join(out), qa

    def calendar(self, n):
        out, qa = [], []
        style = self.r.random()
        for p in self.names(n):
            key = f"{self.pick(EVENT_A)} {self.pick(EVENT_B)} with {p}"
            when = f"{self.pick(DAYS)} {self.date()} at {self.time()} in {self.room()}"
            out.append(f"The {key} is on {when}." if style < 0.6 else f"- {key}: {when}")
            qa.append((self.ask(f"When is the {key}?", f"Where is the {key}?", f"When and where is the {key}?"), f"The {key} is on {when}."))
        return "Calendar\n" + "\n".join(out), qa

    def chat(self, n):
        out, qa = [], []
        people = self.names(max(2, n // 3))
        used = set()
        for _ in range(n):
            p, t, m = self.pick(people).split()[0], self.time(), self.message()
            if (p, t) in used:
                continue
            used.add((p, t))
            out.append(f"[{t}] {p}: {m}")
            qa.append((self.ask(f"What did {p} write at {t}?", f"Quote what {p} wrote at {t}."), f"[{t}] {p}: {m}"))
        return "Messages\n" + "\n".join(out), qa

    def mail(self):
        p = self.name()
        topic = f"{self.pick(TOPIC_A)} {self.digits(3, 5)}"
        when = f"{self.pick(DAYS)} {self.date()}"
        main = f"The {topic} " + self.pick([
            f"must be paid by {self.date()}, the total is {self.amount()}, and the reference is {self.code()}.",
            f"is ready and you can collect it at {self.address()} on {self.pick(DAYS)} at {self.time()}.",
            f"has moved to {self.room()} and {self.name()} will {self.task()} at {self.time()}.",
            f"needs you to {self.task()} and {self.task()} before {self.date()}, then call {self.name()} on {self.phone()}.",
        ])
        body = [self.sentence() for _ in range(self.r.randint(1, 4))]
        body.insert(self.r.randint(0, len(body)), main)
        text = f"Mail from {p} on {when} about the {topic}\nHello,\n" + " ".join(body) + f"\nRegards, {p.split()[0]}\n"
        return text, p, topic, when, main

    def mails(self, n):
        """(text, extraction questions, summary questions, reply questions)"""
        out, ex, su, re_ = [], [], [], []
        for _ in range(n):
            text, p, topic, when, main = self.mail()
            out.append(text)
            head = f"The mail from {p} on {when} is about the {topic}."
            ex.append((self.ask(f"What is the mail from {p} about?", f"When did {p} write?", f"Which mail came from {p}?"), head))
            su.append((self.ask(f"Summarize the mail from {p}.", f"What does the mail from {p} say?", f"Give me a short summary of the mail from {p}."),
                       f"Mail from {p} on {when} about the {topic}: {main}"))
            point = self.message() if self.r.random() < 0.6 else f"I will {self.task()} on {self.pick(DAYS)} at {self.time()}."
            re_.append((self.ask(f"Reply to {p} about the {topic} and say: {point}", f"Write an answer to {p} about the {topic}: {point}"),
                        f"Hello {p.split()[0]},\nthank you for the mail about the {topic}. {point}\nBest regards"))
        return "Mails\n" + "\n".join(out), ex, su, re_

    def ui(self, n):
        out, qa, seen = [], [], set()
        ids = self.r.sample(range(1, 100 if n < 60 else 1000), n)
        if self.r.random() < 0.5:
            ids.sort()
        for i in ids:
            r = self.r.random()
            kind = self.pick(["button", "button", "item", "tab", "input", "checkbox"])
            if r < 0.35:
                t = self.pick(UI_TEXT)
            elif r < 0.6:
                t = self.name()
            else:
                t = f"{self.pick(VERBS).capitalize()} {self.pick(ADJ)} {self.pick(NOUN)}"
            if t in seen:
                t = f"{t} {self.surname()}"
            if t in seen:
                continue
            seen.add(t)
            out.append(f'<{kind} text="{t}" id={i}>')
            if kind == "input":
                v = self.phrase()
                qa.append((f'Type "{v}" into "{t}"', f'type("{t}", {i}, "{v}")'))
            elif kind == "checkbox":
                qa.append((f'Tick "{t}"', f'check({i}, "{t}")'))
            else:
                qa.append((self.pick(['Tap "{}"', 'Press "{}"', 'Open "{}"']).format(t), f'tap({i}, "{t}")'))
        return f"Screen of {self.pick(APPS)}\n" + "\n".join(out), qa

    def api(self, n, n_q):
        apis = self.r.sample(APIS, min(n, len(APIS)))
        suffix = {a[0]: (f"_{self.pick(NOUN)}" if self.r.random() < 0.5 else "") for a in apis}
        text = "Functions\n" + "\n".join(f"{a[0]}{suffix[a[0]]}({', '.join(a[1])}): {a[2]}" for a in apis)
        qa = []
        for _ in range(n_q):
            a = self.pick(apis)
            v = {k: self.argument(k) for k in a[1]}
            qa.append((a[3].format(**v) + ".", f"{a[0]}{suffix[a[0]]}(" + ", ".join(f'{k}="{v[k]}"' for k in a[1]) + ")"))
        return text, qa

    def argument(self, k):
        return {
            "to": self.name, "name": self.name, "receiver": self.name, "artist": self.name, "text": lambda: self.message().rstrip("."),
            "body": lambda: self.message().rstrip("."), "subject": self.phrase, "title": self.phrase, "label": self.phrase,
            "query": self.phrase, "day": lambda: f"{self.pick(DAYS)} {self.date()}", "time": self.time, "place": self.room,
            "minutes": lambda: self.digits(1, 2), "number": self.phone, "phone": self.phone, "city": self.surname,
            "address": self.address, "mode": lambda: self.pick(["car", "bus", "bike", "train", "foot"]), "amount": self.amount,
            "reference": self.code, "people": lambda: self.digits(1, 1), "language": lambda: self.pick(LANGS),
            "path": lambda: f"{self.pick(ADJ)}/{self.pick(NOUN)}{self.digits(2, 3)}.{self.pick(['txt', 'pdf', 'jpg'])}",
        }[k]()

    def quote(self):
        """English with a sentence to be quoted."""
        s = [self.pick(self.en.sentences[self.split]) for _ in range(self.r.randint(4, 10))]
        s = list(dict.fromkeys(s))
        starts = [" ".join(x.split()[:4]) for x in s]
        qa = [(f'Quote the sentence that begins with "{b}"', x) for b, x in zip(starts, s) if starts.count(b) == 1]
        return "Story\n" + " ".join(s), qa

    # ---- items --------------------------------------------------------------------------------------------------
    def section(self, kind, small=False, n_qa=1):
        """One section: (text, {task: [qa]})"""
        k = self.r.randint
        if kind == "contacts":
            t, q = self.contacts(k(2, 3) if small else k(2, 8))
            return t, {"extraction": q}
        if kind == "facts":
            t, q = self.facts(k(2, 5) if small else k(3, 12))
            return t, {"extraction": q}
        if kind == "calendar":
            t, q = self.calendar(k(2, 3) if small else k(2, 8))
            return t, {"extraction": q}
        if kind == "chat":
            t, q = self.chat(k(2, 4) if small else k(3, 10))
            return t, {"extraction": q}
        if kind == "mails":
            t, e, s, r = self.mails(1 if small else k(1, 3))
            return t, {"extraction": e, "summary": s, "reply": r}
        if kind == "ui":
            t, q = self.ui(k(3, 6) if small else k(5, 18))
            return t, {"ui_action": q}
        if kind == "api":
            t, q = self.api(k(3, 5) if small else k(4, 10), max(4, n_qa))
            return t, {"function_call": q}
        t, q = self.quote()
        return t, {"quote": q}

    KINDS = {
        "extraction": ["contacts", "facts", "calendar", "chat", "mails"],
        "summary": ["mails"], "reply": ["mails"], "ui_action": ["ui"], "function_call": ["api"], "quote": ["quote"],
    }
    FILLER = ["contacts", "facts", "calendar", "chat", "mails", "quote"]

    def item(self, task, n_tok, count, n_qa=1):
        """An item whose document and questions come close to, and never above, n_tok tokens; None if no draw fits."""
        # with many questions the document leaves them room: answers are what is learned from
        n_doc = n_tok - 60 if n_qa == 1 else int((n_tok - 60) * self.r.uniform(0.45, 0.85))
        for _ in range(20):
            used, parts = 60, []
            small = n_tok < 320
            t, q = self.section(self.pick(self.KINDS[task]), small, n_qa)
            n = count(t)
            if used + n > n_tok:
                continue
            parts.append(t)
            used += n + 2
            pool, other = list(q[task]), [x for k in q if k != task for x in q[k]]
            while used < n_doc:
                t, q = self.section(self.pick(self.FILLER), small or n_doc - used < 400, n_qa)
                n = count(t)
                if used + n + 2 > n_doc + 60:
                    break
                parts.append(t)
                used += n + 2
                for k in q:
                    (pool if k == task else other).extend(q[k])
            self.r.shuffle(parts)
            self.r.shuffle(pool)
            self.r.shuffle(other)
            qa, doc = [], "\n\n".join(parts)
            for question, a in (pool + other if n_qa > 1 else pool)[: n_qa * 2]:
                n = count(question) + count(a) + 14
                if qa and used + n - 60 > n_tok or len(qa) >= n_qa:
                    continue
                used += n
                qa.append((question, a))
            if qa:
                self.r.shuffle(qa)
                return doc, qa, task
        return None

    def copy_drill(self, n_tok, count):
        """Curriculum only: random lists asked again, line by line; the easiest have a one-word key right before the value."""
        k = max(2, min(40, n_tok // 40))
        r = self.r.random()
        if r < 0.3:
            t, qa = self.facts(k)
        elif r < 0.6:
            t, qa = self.contacts(max(2, k // 2))
        else:
            keys = self.r.sample(NOUN, k + k // 2)
            draw = self.pick([self.code, self.phrase, self.name, lambda: self.digits(2, 3), self.time])
            pairs = [(w, draw()) for w in keys]
            t, qa = "List\n" + "\n".join(f"{w}: {v}" for w, v in pairs), [(w, f"{w}: {v}") for w, v in pairs]
        self.r.shuffle(qa)
        out, used = [], count(t) + 20
        for q in qa:
            used += count(q[0]) + count(q[1]) + 14
            if used > n_tok:
                break
            out.append(q)
        return (t, out, "drill") if out else None


def render(doc, qa):
    """[(text, is_answer)] of a conversation; specials stand as text."""
    out = []
    for i, (q, a) in enumerate(qa):
        head = f"{doc}\n\n" if i == 0 else ""
        nl = "\n" if i else ""
        out.append((f"{nl}<|im_start|>user\n{head}Question: {q}<|im_end|>\n<|im_start|>assistant\n", False))
        out.append((f"{a}<|im_end|>", True))
    return out


def prompt_of(doc, question):
    return render(doc, [(question, "")])[0][0]
