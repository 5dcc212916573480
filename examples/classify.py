"""Lines of standard input into classes: python3 examples/classify.py MODEL CLASS CLASS...

A JSON schema leaves the model no other answer than one of the classes."""
import sys

import tern


def main(path, *classes):
    model = tern.Model(path, temp=0)
    for line in sys.stdin:
        messages = [{"role": "user", "content": f"Which of {', '.join(classes)} is this text about?\n\n{line.strip()}"}]
        print(model.complete(messages, schema={"enum": list(classes)}), line.strip(), sep="\t", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
