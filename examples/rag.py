"""An answer from the text files of a folder: python3 examples/rag.py MODEL FOLDER QUESTION

The paragraphs whose embeddings are nearest to the question's stand in front of it. `tern rag` and `tern ask` do more: they keep an index, read PDF
and office documents, and search for words too."""
import pathlib
import sys

import tern


def main(path, folder, question, n=3):
    model = tern.Model(path, temp=0)
    passages = [(file.name, p.strip()) for file in sorted(pathlib.Path(folder).rglob("*.txt")) for p in file.read_text().split("\n\n") if p.strip()]
    wanted = model.embed(question, mean=True)

    def nearness(passage):
        return sum(float(a) * float(b) for a, b in zip(wanted, model.embed(passage[1], mean=True)))

    found = sorted(passages, key=nearness, reverse=True)[:n]
    for name, text in found:
        print(f"[{name}] {text[:60]}")
    context = "\n\n".join(text for _, text in found)
    for piece in model.chat(f"{context}\n\nQuestion: {question}"):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
