"""A conversation in the terminal: python3 examples/talk.py MODEL"""
import sys
import tern

model, messages = tern.Model(sys.argv[1]), []
for line in sys.stdin:
    messages.append({"role": "user", "content": line.strip()})
    answer = model.chat(messages)
    for piece in answer:
        print(piece, end="", flush=True)
    print()
    messages.append({"role": "assistant", "content": answer.text})
