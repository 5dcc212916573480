"""Written by scripts/bindings.py from tern.h and tern_shadow.h: types and functions of libtern for ctypes."""
# fmt: off
# mypy: ignore-errors
import ctypes as C

TERN_VERSION_MAJOR = 0
TERN_VERSION_MINOR = 1
TERN_VERSION_PATCH = 0

# tern_status
TERN_OK = 0
TERN_E_INVALID = 1
TERN_E_MEMORY = 2
TERN_E_IO = 3
TERN_E_FORMAT = 4
TERN_E_UNSUPPORTED = 5
TERN_E_CANCELLED = 6
TERN_E_LIMIT = 7
TERN_E_DEVICE = 8

# tern_log_level
TERN_LOG_ERROR = 0
TERN_LOG_WARN = 1
TERN_LOG_INFO = 2
TERN_LOG_DEBUG = 3

# tern_special_token
TERN_TOKEN_BOS = 0
TERN_TOKEN_EOS = 1
TERN_TOKEN_EOT = 2

# tern_stop_reason
TERN_STOP_LENGTH = 0
TERN_STOP_END = 1
TERN_STOP_STRING = 2
TERN_STOP_CALLBACK = 3
TERN_STOP_CONTEXT = 4


class tern_error(C.Structure):
    _fields_ = [
        ("code", C.c_int),
        ("message", C.c_char * 512),
    ]


class tern_hooks(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("alloc", C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_size_t, C.c_size_t)),
        ("release", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)),
        ("log", C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_void_p)),
        ("progress", C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_void_p, C.c_double)),
        ("user", C.c_void_p),
    ]


class tern_estimate(C.Structure):
    _fields_ = [
        ("arch", C.c_char * 32),
        ("weight_bytes", C.c_uint64),
        ("kv_bytes", C.c_uint64),
        ("work_bytes", C.c_uint64),
        ("n_ctx", C.c_int32),
    ]


class tern_model_info(C.Structure):
    _fields_ = [
        ("arch", C.c_char_p),
        ("name", C.c_char_p),
        ("n_params", C.c_uint64),
        ("n_layers", C.c_int32),
        ("n_embd", C.c_int32),
        ("n_heads", C.c_int32),
        ("n_kv_heads", C.c_int32),
        ("d_head", C.c_int32),
        ("n_ff", C.c_int32),
        ("n_vocab", C.c_int32),
        ("scheme", C.c_char_p),
        ("ctx_train", C.c_int32),
        ("weight_bytes", C.c_uint64),
        ("package", C.c_bool),
        ("embeds", C.c_bool),
    ]


class tern_message(C.Structure):
    _fields_ = [
        ("role", C.c_char_p),
        ("content", C.c_char_p),
    ]


class tern_chat_options(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("messages", C.c_char_p),
        ("tools", C.c_char_p),
        ("variables", C.c_char_p),
        ("chat_template", C.c_char_p),
        ("now_s", C.c_int64),
        ("no_answer", C.c_bool),
    ]


class tern_session_options(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("n_ctx", C.c_int32),
        ("draft", C.c_char_p),
        ("store", C.c_char_p),
        ("store_bytes", C.c_uint64),
    ]


class tern_image(C.Structure):
    _fields_ = [
        ("width", C.c_int32),
        ("height", C.c_int32),
        ("rgb", C.POINTER(C.c_uint8)),
    ]


class tern_sampling(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("temperature", C.c_float),
        ("top_k", C.c_int32),
        ("top_p", C.c_float),
        ("min_p", C.c_float),
        ("repeat_penalty", C.c_float),
        ("repeat_last_n", C.c_int32),
        ("seed", C.c_uint64),
        ("reserved", C.c_uint64 * 4),
    ]


class tern_generate_options(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("max_tokens", C.c_int32),
        ("ignore_end", C.c_bool),
        ("sampling", tern_sampling),
        ("stop", C.POINTER(C.c_char_p)),
        ("on_token", C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_int32, C.c_void_p, C.c_size_t, C.c_float)),
        ("user", C.c_void_p),
        ("draft", C.c_char_p),
        ("draft_nodes", C.c_int32),
        ("draft_eager", C.c_bool),
        ("no_logprobs", C.c_bool),
        ("grammar", C.c_char_p),
        ("json_schema", C.c_char_p),
        ("grammar_after", C.c_char_p),
        ("on_logits", C.CFUNCTYPE(C.c_bool, C.c_void_p, C.POINTER(C.c_float), C.c_size_t)),
        ("special_text", C.c_bool),
        ("compiled", C.c_void_p),
        ("leave_last", C.c_bool),
    ]


class tern_generate_result(C.Structure):
    _fields_ = [
        ("n_tokens", C.c_int32),
        ("reason", C.c_int),
        ("decode_s", C.c_double),
        ("reserved", C.c_uint64 * 4),
    ]


class tern_pack_options(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("hooks", C.POINTER(tern_hooks)),
        ("scheme", C.c_char_p),
        ("bits", C.c_float),
        ("calibration", C.c_char_p),
        ("n_threads", C.c_int32),
    ]


class tern_pack_report(C.Structure):
    _fields_ = [
        ("package_bytes", C.c_uint64),
        ("n_calibration_tokens", C.c_uint64),
        ("n_sites", C.c_int32),
        ("n_outlier_sites", C.c_int32),
    ]


class tern_shadow_options(C.Structure):
    _fields_ = [
        ("size_bytes", C.c_size_t),
        ("n_heads", C.c_int32),
        ("n_kv_heads", C.c_int32),
        ("d_head", C.c_int32),
        ("max_tokens", C.c_int32),
        ("ratio", C.c_float),
        ("head_weight", C.POINTER(C.c_float)),
        ("scale_q", C.c_float),
        ("scale_k", C.c_float),
        ("share_rows", C.c_int32),
        ("pool_heads", C.c_int32),
        ("window", C.c_int32),
        ("scale", C.c_float),
        ("soft_cap", C.c_float),
        ("hooks", C.POINTER(tern_hooks)),
    ]


FUNCTIONS = {
    "tern_version": (C.c_char_p, []),
    "tern_version_number": (C.c_uint32, []),
    "tern_status_text": (C.c_char_p, [C.c_int]),
    "tern_hooks_init": (C.c_int, [C.POINTER(tern_hooks), C.c_size_t]),
    "tern_options_new": (C.c_int, [C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_options_free": (None, [C.POINTER(C.c_void_p)]),
    "tern_options_set": (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, C.POINTER(tern_error)]),
    "tern_options_get": (C.c_int, [C.c_void_p, C.c_char_p, C.c_void_p, C.c_size_t, C.POINTER(C.c_size_t), C.POINTER(tern_error)]),
    "tern_options_set_hooks": (C.c_int, [C.c_void_p, C.POINTER(tern_hooks), C.POINTER(tern_error)]),
    "tern_engine_open": (C.c_int, [C.c_char_p, C.c_void_p, C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_engine_open_fd": (C.c_int, [C.c_int, C.c_void_p, C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_engine_close": (None, [C.POINTER(C.c_void_p)]),
    "tern_engine_estimate_sized": (C.c_int, [C.c_char_p, C.c_void_p, C.POINTER(tern_estimate), C.c_size_t, C.POINTER(tern_error)]),
    "tern_engine_info_sized": (C.c_int, [C.c_void_p, C.POINTER(tern_model_info), C.c_size_t]),
    "tern_engine_property": (C.c_char_p, [C.c_void_p, C.c_size_t, C.c_void_p, C.c_size_t]),
    "tern_tokenize": (C.c_int, [C.c_void_p, C.c_char_p, C.c_size_t, C.c_bool, C.c_bool, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(C.c_size_t), C.POINTER(tern_error)]),
    "tern_token_bytes": (C.c_size_t, [C.c_void_p, C.c_int32, C.c_bool, C.c_void_p, C.c_size_t]),
    "tern_token_is_end": (C.c_bool, [C.c_void_p, C.c_int32]),
    "tern_token_special": (C.c_int32, [C.c_void_p, C.c_int]),
    "tern_has_chat_template": (C.c_bool, [C.c_void_p]),
    "tern_chat_options_init": (C.c_int, [C.POINTER(tern_chat_options), C.c_size_t]),
    "tern_chat_tokens": (C.c_int, [C.c_void_p, C.POINTER(tern_message), C.c_size_t, C.POINTER(tern_chat_options), C.POINTER(C.c_int32), C.c_size_t, C.POINTER(C.c_size_t), C.POINTER(tern_error)]),
    "tern_chat_render": (C.c_int, [C.c_void_p, C.POINTER(tern_message), C.c_size_t, C.c_void_p, C.c_size_t, C.POINTER(C.c_size_t), C.POINTER(tern_error)]),
    "tern_session_options_init": (C.c_int, [C.POINTER(tern_session_options), C.c_size_t]),
    "tern_session_open": (C.c_int, [C.c_void_p, C.POINTER(tern_session_options), C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_session_close": (None, [C.POINTER(C.c_void_p)]),
    "tern_engine_lora": (C.c_char_p, [C.c_void_p, C.c_size_t]),
    "tern_engine_lora_task": (C.c_char_p, [C.c_void_p, C.c_size_t, C.POINTER(C.c_char_p)]),
    "tern_session_lora": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(tern_error)]),
    "tern_session_prefill": (C.c_int, [C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(tern_error)]),
    "tern_engine_sees": (C.c_bool, [C.c_void_p]),
    "tern_image_decode": (C.c_int, [C.c_void_p, C.c_size_t, C.POINTER(tern_image), C.POINTER(tern_error)]),
    "tern_image_free": (None, [C.POINTER(tern_image)]),
    "tern_session_look": (C.c_int, [C.c_void_p, C.POINTER(tern_message), C.c_size_t, C.POINTER(tern_chat_options), C.POINTER(tern_image), C.c_size_t, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(C.c_size_t), C.POINTER(tern_error)]),
    "tern_session_score": (C.c_int, [C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.c_size_t, C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_size_t, C.POINTER(C.c_float)), C.c_void_p, C.POINTER(tern_error)]),
    "tern_session_step": (C.c_int, [C.c_void_p, C.c_int32, C.POINTER(tern_error)]),
    "tern_session_truncate": (C.c_int, [C.c_void_p, C.c_size_t, C.POINTER(tern_error)]),
    "tern_session_copy": (C.c_int, [C.c_void_p, C.c_void_p, C.POINTER(tern_error)]),
    "tern_session_logits": (C.POINTER(C.c_float), [C.c_void_p]),
    "tern_session_likeliest": (C.c_size_t, [C.c_void_p, C.c_size_t, C.POINTER(C.c_int32), C.POINTER(C.c_float)]),
    "tern_session_length": (C.c_size_t, [C.c_void_p]),
    "tern_session_tokens": (C.POINTER(C.c_int32), [C.c_void_p]),
    "tern_session_capacity": (C.c_int32, [C.c_void_p]),
    "tern_sampling_init": (C.c_int, [C.POINTER(tern_sampling), C.c_size_t]),
    "tern_generate_options_init": (C.c_int, [C.POINTER(tern_generate_options), C.c_size_t]),
    "tern_session_generate": (C.c_int, [C.c_void_p, C.POINTER(tern_generate_options), C.POINTER(tern_generate_result), C.POINTER(tern_error)]),
    "tern_answer_open": (C.c_int, [C.c_void_p, C.POINTER(tern_generate_options), C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_answer_more": (C.c_bool, [C.c_void_p]),
    "tern_answers_step": (C.c_int, [C.POINTER(C.c_void_p), C.c_size_t, C.POINTER(tern_error)]),
    "tern_answer_close": (C.c_int, [C.POINTER(C.c_void_p), C.POINTER(tern_generate_result), C.POINTER(tern_error)]),
    "tern_grammar_open": (C.c_int, [C.c_void_p, C.c_char_p, C.c_char_p, C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_grammar_close": (None, [C.POINTER(C.c_void_p)]),
    "tern_complete": (C.c_int, [C.c_void_p, C.POINTER(tern_message), C.c_size_t, C.c_void_p, C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_void_p, C.c_size_t), C.c_void_p, C.POINTER(tern_generate_result), C.POINTER(tern_error)]),
    "tern_options_answer_sized": (C.c_int, [C.c_void_p, C.POINTER(tern_session_options), C.c_size_t, C.POINTER(tern_generate_options), C.c_size_t, C.POINTER(tern_error)]),
    "tern_session_embed": (C.c_int, [C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.c_bool, C.POINTER(C.c_float), C.c_size_t, C.POINTER(tern_error)]),
    "tern_session_rank": (C.c_int, [C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(C.c_float), C.POINTER(tern_error)]),
    "tern_session_learn": (C.c_int, [C.c_void_p, C.POINTER(C.c_int32), C.c_size_t, C.POINTER(tern_error)]),
    "tern_session_cancel": (None, [C.c_void_p]),
    "tern_session_counter": (C.c_char_p, [C.c_void_p, C.c_size_t, C.POINTER(C.c_double)]),
    "tern_session_write_trace": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(tern_error)]),
    "tern_session_write_gantt": (C.c_int, [C.c_void_p, C.c_int, C.c_int32, C.POINTER(tern_error)]),
    "tern_session_save": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(tern_error)]),
    "tern_session_load": (C.c_int, [C.c_void_p, C.c_char_p, C.POINTER(tern_error)]),
    "tern_session_save_to": (C.c_int, [C.c_void_p, C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_void_p, C.c_size_t), C.c_void_p, C.POINTER(tern_error)]),
    "tern_session_load_from": (C.c_int, [C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(tern_error)]),
    "tern_pack_options_init": (C.c_int, [C.POINTER(tern_pack_options), C.c_size_t]),
    "tern_pack_sized": (C.c_int, [C.c_char_p, C.c_char_p, C.POINTER(tern_pack_options), C.POINTER(tern_pack_report), C.c_size_t, C.POINTER(tern_error)]),
    "tern_shadow_options_init": (C.c_int, [C.POINTER(tern_shadow_options), C.c_size_t]),
    "tern_shadow_open": (C.c_int, [C.POINTER(tern_shadow_options), C.POINTER(C.c_void_p), C.POINTER(tern_error)]),
    "tern_shadow_close": (None, [C.POINTER(C.c_void_p)]),
    "tern_shadow_append": (C.c_int, [C.c_void_p, C.POINTER(C.c_float), C.POINTER(C.c_float), C.c_int32, C.POINTER(tern_error)]),
    "tern_shadow_attend": (C.c_int, [C.c_void_p, C.POINTER(C.c_float), C.c_int32, C.POINTER(C.c_float), C.POINTER(tern_error)]),
    "tern_shadow_truncate": (C.c_int, [C.c_void_p, C.c_int32, C.POINTER(tern_error)]),
    "tern_shadow_n_tokens": (C.c_int32, [C.c_void_p]),
    "tern_shadow_selected": (C.c_double, [C.c_void_p]),
}


def declare(lib: C.CDLL) -> None:
    """Gives the functions of a loaded library their types."""
    for name, (returns, params) in FUNCTIONS.items():
        f = getattr(lib, name)
        f.restype, f.argtypes = returns, params
