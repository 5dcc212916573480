/* text/chat_builtin.c - templates by name, for models without one. They are short forms of the families' own:
 * no tools, no thinking. */
#include "text/chat.h"

#include <string.h>

#define TURNS "{% for message in messages %}"
#define END "{% endfor %}"
/* Families without a system role put its text before the first question. */
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
    {"phi4", TURNS "{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}" END
                   "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"},
    {"mistral-v7",
     "{{ bos_token }}" TURNS "{% if message.role == 'system' %}"
     "{{ '[SYSTEM_PROMPT] ' + message.content + '[/SYSTEM_PROMPT]' }}{% elif message.role == 'user' %}"
     "{{ '[INST] ' + message.content + '[/INST]' }}{% else %}"
     "{{ ' ' + message.content + eos_token }}{% endif %}" END},
    {"command-r",
     "{{ bos_token }}" TURNS
     "{{ '<|START_OF_TURN_TOKEN|>' + {'system': '<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>'}"
     ".get(message.role, '<|CHATBOT_TOKEN|>') + message.content | trim + '<|END_OF_TURN_TOKEN|>' }}" END
     "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"},
    {"deepseek3", "{{ bos_token }}" TURNS "{% if message.role == 'system' %}{{ message.content + '\\n\\n' }}"
                  "{% elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}{% else %}"
                  "{{ '<｜Assistant｜>' + message.content + '<｜end▁of▁sentence｜>' }}{% endif %}" END
                  "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"},
    {"falcon3", TURNS "{{ '<|' + message.role + '|>\\n' + message.content + '\\n' }}" END
                      "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {"chatglm4", "[gMASK]<sop>" TURNS "{{ '<|' + message.role + '|>\\n' + message.content }}" END
                 "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {"granite", TURNS "{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + "
                      "'<|end_of_text|>\\n' }}" END
                      "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}"
                      "{% endif %}"},
    {"llama4", "{{ bos_token }}" TURNS "{{ '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + "
               "message.content | trim + '<|eot|>' }}" END
               "{% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}"
               "{% endif %}"},
};

const char *tn_chat_builtin(const char *name) {
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        if (!strcmp(templates[i].name, name)) return templates[i].source;
    return NULL;
}
