/* text/chat_builtin.c - templates by name, for models that bring none. Short forms of what the families' own
 * templates write: no tools, no thinking. */
#include "text/chat.h"

#include <string.h>

#define TURNS "{% for message in messages %}"
#define END "{% endfor %}"
/* Families that know no system role put its text in front of the first question. */
#define MOVE_SYSTEM                                                                                          \
    "{% set t = messages %}{% if messages and messages[0].role == 'system' %}"                               \
    "{% set sys = messages[0].content %}{% set t = messages[1:] %}{% endif %}{% for message in t %}"         \
    "{% if message.role != ('assistant' if loop.index0 % 2 else 'user') %}"                                  \
    "{{ raise_exception('user and assistant take turns') }}{% endif %}"

static const struct {
    const char *name, *source;
} templates[] = {
    {"chatml", TURNS "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}" END
                     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama3",
     "{{ bos_token }}" TURNS "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + "
     "message.content | trim + '<|eot_id|>' }}" END
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
     "{% endif %}"},
    {"llama2",
     MOVE_SYSTEM "{% if message.role == 'user' %}{{ bos_token + '[INST] ' }}"
                 "{% if loop.first and sys is defined %}{{ '<<SYS>>\\n' + sys + '\\n<</SYS>>\\n\\n' }}"
                 "{% endif %}{{ message.content | trim + ' [/INST]' }}{% else %}"
                 "{{ ' ' + message.content | trim + ' ' + eos_token }}{% endif %}" END},
    {"mistral", "{{ bos_token }}" MOVE_SYSTEM
                "{% if message.role == 'user' %}{{ '[INST] ' }}{% if loop.first and sys is defined %}"
                "{{ sys + '\\n\\n' }}{% endif %}{{ message.content + ' [/INST]' }}{% else %}"
                "{{ message.content + eos_token }}{% endif %}" END},
    {"gemma", "{{ bos_token }}" MOVE_SYSTEM
              "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
              "{% if loop.first and sys is defined %}{{ sys + '\\n\\n' }}{% endif %}"
              "{{ message.content | trim + '<end_of_turn>\\n' }}" END
              "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"},
    {"phi3", TURNS "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}" END
                   "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {"zephyr", TURNS "{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}" END
                     "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
};

const char *tn_chat_builtin(const char *name) {
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (!strcmp(templates[i].name, name)) return templates[i].source;
    return NULL;
}
