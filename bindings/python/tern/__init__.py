"""tern: language models on your own machine.

    >>> import tern
    >>> model = tern.Model("models/tern-tiny", temp=0, n_predict=5)
    >>> model.complete("Once upon a time")
    ', there was a little'

Answers come piece by piece, and what is not taken is not computed:

    >>> for piece in model.chat([{"role": "user", "content": "Hello"}]):
    ...     print(piece, end="", flush=True)
    Question: What is the

With a JSON schema the answer is a value:

    >>> model.complete("The sky is", schema={"enum": ["blue", "green"]})
    'blue'

A session is a text that can be looked into, saved and gone on with:

    >>> session = model.session()
    >>> session.prefill("Once upon a time")
    >>> session.logits.shape[0] == model.info["n_vocab"]
    True
    >>> "".join(session.generate())
    ', there was a little'

What the library refuses is raised in its words:

    >>> tern.Model("nowhere.gguf")
    Traceback (most recent call last):
    tern.Error: nowhere.gguf: cannot open: No such file or directory
"""
from ._lib import Cancelled, Error, version
from ._model import Estimate, Model, PackReport, estimate, pack
from ._session import Answer, Session, Token

__all__ = ["Answer", "Cancelled", "Error", "Estimate", "Model", "PackReport", "Session", "Token", "estimate", "pack", "version"]
Error.__module__ = Cancelled.__module__ = "tern"
