"""The Python binding beside the program: python3 test_tern.py TERN, with $TERN_LIBRARY and $PYTHONPATH set (tests/bindings/python.sh)."""
import ctypes
import doctest
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import tern
from tern import _abi, _lib, _session

MODEL = "models/tern-tiny"
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/tern"
LONG = "The little dog went to the park and saw a bird. " * 60  # more than a chunk


def program(*words, text=None):
    return subprocess.run([PROGRAM, *words], input=text, check=True, capture_output=True, text=True).stdout

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = tern.Model(MODEL, temp=0, n_predict=12, threads=2)
        cls.tmp = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()


class Text(Base):
    def test_tokens_are_the_programs(self):
        text = "It's 12:30 — naïve 日本語"
        ids = [int(i) for i in program("tokenize", "-m", MODEL, "--ids", text=text).split()]
        self.assertEqual(self.model.tokenize(text, special=False), ids)
        self.assertEqual(self.model.detokenize(ids), text)

    def test_a_completion_is_the_programs(self):
        said = program("run", MODEL, "Once upon a time", "--raw", "--temp", "0", "-n", "12", "-t", "2")
        self.assertEqual(self.model.complete("Once upon a time"), said.removesuffix("\n"))

    def test_a_chat_is_the_programs(self):
        said = program("run", MODEL, "What is a dog?", "--temp", "0", "-n", "12", "-t", "2")
        pieces = list(self.model.chat("What is a dog?"))
        self.assertEqual("".join(pieces), said.removesuffix("\n"))
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(self.model.chat([{"role": "user", "content": "What is a dog?"}])), "".join(pieces))

    def test_schema(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"], "additionalProperties": False}
        value = self.model.complete([{"role": "user", "content": "A number?"}], schema=schema)
        self.assertEqual(list(value), ["n"])
        self.assertIsInstance(value["n"], int)
        with self.assertRaisesRegex(tern.Error, "cut off after 2 tokens"):
            self.model.complete("A number?", schema=schema, n_predict=2)
        self.assertRegex(self.model.complete("Say", grammar='root ::= "yes" | "no"'), "^(yes|no)$")

    def test_stop_and_reason(self):
        answer = self.model.chat("What is a dog?", n_predict=3)
        list(answer)
        self.assertEqual((answer.reason, answer.n_tokens), ("length", 3))
        whole = self.model.complete("Once upon a time")
        self.assertEqual(self.model.complete("Once upon a time", stop=[whole[4:9]]), whole[: whole.index(whole[4:9])])
        self.assertTrue(all(t.logprob <= 0 for t in answer.tokens))

    def test_seeds(self):
        one = [self.model.complete("One day", temp=1.5, seed=s, n_predict=20) for s in (1, 1, 2)]
        self.assertEqual(one[0], one[1])
        self.assertNotEqual(one[0], one[2])
        self.assertGreater(len({self.model.complete("One day", temp=1.5, n_predict=20) for _ in range(4)}), 1)

    def test_embed(self):
        a, b, mean = self.model.embed("a dog"), self.model.embed("the stock market"), self.model.embed("a dog", mean=True)
        self.assertEqual(len(a), self.model.info["n_embd"])
        product = lambda x, y: sum(float(p) * float(q) for p, q in zip(x, y))
        self.assertAlmostEqual(product(a, a), 1, 5)
        self.assertLess(product(a, b), 0.999)
        self.assertLess(product(a, mean), 0.9999)

    def test_parts(self):
        parts = [{"type": "text", "text": "Who is"}, {"type": "text", "text": "Lily?"}]
        self.assertEqual(self.model.chat_tokens([{"role": "user", "content": parts}]), self.model.chat_tokens("Who is\nLily?"))
        for bad in ([{"type": "image_url", "image_url": {"url": "x"}}], ["text"], [{"type": "text"}]):
            with self.assertRaises(ValueError):
                self.model.chat_tokens([{"role": "user", "content": bad}])

    def test_embed_several(self):
        texts = ["a dog", "the stock market", ""]
        rows = self.model.embed(texts[:2])
        self.assertEqual(len(rows), 2)
        for text, row in zip(texts, rows):
            self.assertEqual(list(row), list(self.model.embed(text)))
        self.assertEqual(len(self.model.embed([])), 0)

    def test_async(self):
        import asyncio

        async def one(prompt):
            return "".join([piece async for piece in self.model.chat(prompt, n_predict=8)])

        async def several():
            return await asyncio.gather(one("Who is Lily?"), one("Tell me a story."), one("Who is Lily?"))

        a, b, c = asyncio.run(several())
        self.assertEqual(a, c)
        self.assertEqual(b, "".join(self.model.chat("Tell me a story.", n_predict=8)))

        async def left():
            async with self.model.chat("Tell me a story.", n_predict=200) as answer:
                async for _ in answer:
                    break
            return answer.reason

        self.assertEqual(asyncio.run(left()), "closed")

        async def cancelled():
            answer = self.model.chat("Tell me a story.", n_predict=100000, ignore_eos=True, ctx_size=512)

            async def read():
                async for _ in answer:
                    pass

            task = asyncio.ensure_future(read())
            while not answer.tokens:
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await asyncio.get_running_loop().run_in_executor(None, answer.close)
            return answer.reason

        self.assertEqual(asyncio.run(cancelled()), "closed")
        self.assertEqual("".join(self.model.chat("Who is Lily?", n_predict=8)), a)

    def test_threads_share_a_model(self):
        want, got = self.model.complete("Once upon a time"), []
        threads = [threading.Thread(target=lambda: got.append(self.model.complete("Once upon a time"))) for _ in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(got, [want] * 3)


class Sessions(Base):
    def test_save_and_load(self):
        path = os.path.join(self.tmp.name, "s")
        with self.model.session() as s:
            s.prefill("Once upon a time there was a")
            s.save(path)
            self.assertEqual(s.tokens, self.model.tokenize("Once upon a time there was a"))
            want = "".join(s.generate())
        with self.model.session() as t:
            t.load(path)
            self.assertEqual(t.tokens, self.model.tokenize("Once upon a time there was a"))
            u = t.copy()
            with open(path, "rb") as f:
                data = f.read()
            self.assertEqual(u.dump(), data)
            with self.model.session() as v:
                v.restore(data)
                self.assertEqual("".join(v.generate()), want)
                self.assertGreater(v.stats()["draft_forwards"] + v.stats()["kv_bytes"], 0)
                with self.assertRaises(tern.Error):
                    v.restore(data[:-1])
            self.assertEqual("".join(t.generate()), want)
            self.assertEqual("".join(u.generate()), want)
            t.truncate(3)
            self.assertEqual(len(t), 3)
        with self.assertRaises(tern.Error):
            self.model.session().load(MODEL + "/config.json")

    def test_logits_are_not_copied(self):
        s = self.model.session()
        self.assertIsNone(s.logits)
        s.prefill("Once upon a time")
        view = s.logits
        there = _lib.lib.tern_session_logits(s._pointer())
        self.assertEqual(ctypes.addressof(there.contents), _address(view))
        best = max(range(len(view)), key=lambda i: view[i])
        likeliest = s.likeliest(3)
        self.assertEqual([t for t, _ in likeliest], sorted(range(len(view)), key=lambda i: -view[i])[:3])
        self.assertLess(likeliest[0][1], 0)
        self.assertEqual(s.likeliest(0), [])
        self.assertEqual(next(s.generate()), self.model.detokenize([best]))
        with self.assertRaises((TypeError, ValueError)):
            view[0] = 1
        s.step(best)
        value = float(view[5])  # memory that a step wrote anew
        s.close()
        del s
        gc.collect()
        self.assertEqual(float(view[5]), value)

    def test_ids_of_a_buffer(self):
        ids = self.model.tokenize("Once upon a time")
        array = (ctypes.c_int32 * len(ids))(*ids)
        s = self.model.session()
        s.prefill(memoryview(array))
        self.assertEqual(s.tokens, ids)
        with self.assertRaisesRegex(TypeError, "int32"):
            s.prefill(memoryview(b"abcd"))
        s.prefill(ids[:2])
        self.assertEqual(s.tokens, ids[:2])

    def test_logits_can_be_changed(self):
        first = self.model.session().generate("Once upon a time")
        next(first)
        forbidden = first.tokens[0].id
        first.close()

        def mask(logits):
            logits[forbidden] = float("-inf")

        answer = self.model.session().generate("Once upon a time", on_logits=mask)
        self.assertTrue("".join(answer))
        self.assertNotIn(forbidden, [t.id for t in answer.tokens])

        def broken(logits):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            list(self.model.session().generate("Once", on_logits=broken))

    def test_what_on_logits_saw_is_pythons(self):
        """A view that is kept reads nothing of the library's, and writes nothing there, while the answer goes on and when all is closed."""
        seen = []

        def keep(logits):
            seen.append(logits)
            for earlier in seen[:-1]:
                earlier[7] = 1e9  # in the library's memory this would be the next token

        def copy(logits):
            copies.append(logits[:] if _session.numpy is None else logits.copy())
            if _session.numpy is None:
                copies[-1] = memoryview(bytes(copies[-1])).cast("f")

        copies = []
        session = self.model.session(draft="none")
        want = "".join(session.generate("Once upon a time", on_logits=copy))
        session = self.model.session(draft="none")
        self.assertEqual("".join(session.generate("Once upon a time", on_logits=keep)), want)
        there = ctypes.addressof(_lib.lib.tern_session_logits(session._pointer()).contents)
        self.assertNotIn(there, [_address(v) for v in seen])
        session.close()
        del session
        gc.collect()
        self.assertEqual(len(seen[0]), self.model.info["n_vocab"])
        seen[0][0] = 1.0  # Python's own memory

    def test_views_of_logits_cannot_be_made_writable(self):
        s = self.model.session()
        s.prefill("Once upon a time")
        view = s.logits
        if _session.numpy is not None:
            with self.assertRaises(ValueError):
                view.flags.writeable = True
        with self.assertRaises((TypeError, ValueError)):
            view[0] = 1

    def test_numbers_are_not_cut(self):
        s = self.model.session()
        for bad in (2**32 + 5, -1, 2**31, -(2**32) + 5):
            for call in (lambda: s.prefill([bad]), lambda: s.prefill([1, bad]), lambda: s.step(bad), lambda: self.model.detokenize([bad]),
                         lambda: list(s.generate([bad]))):
                with self.assertRaisesRegex(ValueError, "token id"):
                    call()
        for bad in (1.5, "5", None):
            with self.assertRaises(TypeError):
                s.prefill([bad])
        with self.assertRaises(tern.Error):
            s.prefill([self.model.info["n_vocab"]])
        s.prefill("Once upon a time")
        n = len(s)
        for bad in (2**64 + 1, -1):
            with self.assertRaises(ValueError):
                s.truncate(bad)
        self.assertEqual(len(s), n)
        with self.assertRaises(ValueError):
            tern.pack(MODEL, os.path.join(self.tmp.name, "no.tern"), threads=2**32 + 1)

    def test_text_is_not_cut_at_nul(self):
        path = os.path.join(self.tmp.name, "cut")
        s = self.model.session()
        s.prefill("Once")
        for call in (lambda: s.save(path + "\0.more"), lambda: s.load(path + "\0.more"), lambda: tern.Model(MODEL + "\0.more"),
                     lambda: tern.Model(MODEL, draft="none\0more"), lambda: tern.Model(MODEL, **{"temp\0more": 0}), lambda: tern.estimate(MODEL + "\0.more"),
                     lambda: s.generate(grammar='root ::= "yes"\0 | "no"'), lambda: s.generate(stop=["a\0b"]), lambda: s.generate(schema='{"type": "string"}\0'),
                     lambda: self.model.chat("Hello", chat_template="{{ x }}\0"), lambda: tern.pack(MODEL, path + "\0.tern"),
                     lambda: tern.pack(MODEL, path, scheme="gram\0")):
            with self.assertRaisesRegex(ValueError, "NUL"):
                call()
        self.assertFalse(os.path.exists(path))
        text = "a\0b"  # of texts it is a character as any other
        self.assertEqual(self.model.detokenize(self.model.tokenize(text, special=False)), text)
        with self.assertRaises(tern.Error):  # JSON has none
            self.model.chat_tokens(text)

    def test_what_is_not_taken_is_not_computed(self):
        s = self.model.session()
        n = len(self.model.tokenize("Once upon a time"))
        answer = s.generate("Once upon a time", n_predict=-1)
        self.assertEqual(len([p for p, _ in zip(answer, range(3))]), 3)
        with self.assertRaisesRegex(RuntimeError, "close it first"):
            s.prefill("Another")
        answer.close()
        self.assertEqual(answer.reason, "closed")
        self.assertLessEqual(len(s), n + answer.n_tokens + 1)
        self.assertEqual(list(answer), [])
        for piece in s.generate(n_predict=-1):
            break  # forgotten, so it ends
        gc.collect()
        s.prefill("Another")

    def test_draws_what_the_session_was_opened_for(self):
        s = self.model.session(ctx_size=40)
        self.assertEqual(s.capacity, 40)
        answer = s.generate("Once upon a time", n_predict=-1, ignore_eos=True)
        list(answer)
        self.assertEqual(answer.reason, "context")


class Ends(Base):
    def test_cancel_from_another_thread(self):
        def progress(stage, fraction):
            if stage == "prompt":
                session.cancel()

        model = tern.Model(MODEL, progress=progress)
        session = model.session()
        with self.assertRaises(tern.Cancelled):
            session.prefill(LONG)
        self.assertLess(len(session), len(model.tokenize(LONG)))
        session.prefill("Once upon a time")  # goes on
        session.cancel()  # nothing runs: nobody else is ended
        session.prefill("Once upon a time there")

    def test_ctrl_c_while_a_prompt_is_read(self):
        def progress(stage, fraction):
            if stage == "prompt" and fraction < 1:
                os.kill(os.getpid(), signal.SIGINT)

        model = tern.Model(MODEL, progress=progress, temp=0)
        session = model.session()
        with self.assertRaises(KeyboardInterrupt):
            session.prefill(LONG)
        with self.assertRaises(KeyboardInterrupt):
            list(session.generate(LONG))
        self.assertEqual("".join(session.generate("Once upon a time", n_predict=5)), ", there was a little")

    def test_ctrl_c_while_an_answer_is_written(self):
        seen = []

        def on_logits(logits):
            seen.append(1)
            if len(seen) == 4:
                os.kill(os.getpid(), signal.SIGINT)

        session = self.model.session()
        answer = session.generate("Once upon a time", n_predict=-1, on_logits=on_logits, draft="none", ignore_eos=True)
        with self.assertRaises(KeyboardInterrupt):
            while True:
                next(answer)
        self.assertEqual(answer.reason, "closed")
        self.assertLess(answer.n_tokens, 12)
        self.assertTrue("".join(session.generate()))

    def test_the_end_of_the_program_waits_for_nobody(self):
        code = f"import tern; a = tern.Model({MODEL!r}).chat('Hello', n_predict=-1, ignore_eos=True); print(next(a) != '')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True\n", ""))


    def test_a_cycle_ends_its_sessions_before_their_engine(self):
        code = f"""
import gc, tern
for _ in range(3):
    model = tern.Model({MODEL!r}, temp=0, n_predict=2)
    model.me, model.more = model, [model.session() for _ in range(3)]
    "".join(model.chat("Hello"))
    del model
    gc.collect()
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "MALLOC_PERTURB_": "165"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Pictures(Base):
    def test_pictures(self):
        path = os.path.join(self.tmp.name, "sees.gguf")
        program("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", path)
        program("synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "-o", os.path.join(self.tmp.name, "mmproj-sees.gguf"))
        m = tern.Model(path, temp=0, n_predict=6, threads=2)

        def ask(image):
            return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "what?"}]}]

        def pixels(k):
            return 40, 20, bytes(i * k % 256 for i in range(40 * 20 * 3))

        self.assertTrue(m.sees)
        self.assertFalse(self.model.sees)
        said = "".join(m.chat(ask(pixels(7))))
        self.assertEqual(m.complete(ask(pixels(7))), said)
        s = m.session(ctx_size=200)
        ids = s.look(ask(pixels(7)))
        self.assertGreaterEqual(max(ids), m.info["n_vocab"])
        self.assertEqual("".join(s.generate(ids, n_predict=6, temp=0)), said)
        self.assertNotEqual(list(s.look(ask(pixels(11)))), list(ids))
        with self.assertRaisesRegex(ValueError, "40 x 20 pixels take 2400 bytes"):
            m.chat(ask((40, 20, b"x")))
        with self.assertRaisesRegex(TypeError, "an image is"):
            m.chat(ask(3))
        with self.assertRaisesRegex(tern.Error, "no picture|libtern-pictures"):
            m.chat(ask(b"nothing"))
        with self.assertRaisesRegex(tern.Error, "has no picture encoder"):
            self.model.chat(ask(pixels(7)))
        file = "docs/figures/page.png"
        try:
            self.assertIsInstance(m.complete(ask(file)), str)
        except tern.Error as e:  # a build without libpng
            self.assertIn("was built without", str(e))
        with open(file, "rb") as f:
            data = f.read()
        try:
            from PIL import Image
        except ImportError:
            return
        self.assertEqual(list(s.look(ask(data))), list(s.look(ask(Image.open(file)))))


class Opening(Base):
    def test_errors_are_the_librarys(self):
        for call, said in ((lambda: tern.Model("nowhere.gguf"), "nowhere.gguf: cannot open"), (lambda: tern.Model(MODEL, thread=1), "no parameter is called 'thread'"),
                           (lambda: self.model.chat("a", temp="hot"), "temp hot: want a number"), (lambda: tern.pack("nowhere", "out.tern"), "nowhere"),
                           (lambda: self.model.complete("a", schema={"type": "wish"}), "wish")):
            with self.assertRaisesRegex(tern.Error, re.escape(said)):
                call()

    def test_opening_can_be_ended(self):
        with self.assertRaises(tern.Cancelled):
            tern.Model(MODEL, progress=lambda stage, fraction: False)

        def broken(stage, fraction):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            tern.Model(MODEL, progress=broken)

    def test_pack(self):
        src, out, seen = os.path.join(self.tmp.name, "m.gguf"), os.path.join(self.tmp.name, "m.tern"), []
        program("synth", "--arch", "tiny-qwen2", "-o", src)
        report = tern.pack(src, out, scheme="llm-npu", progress=lambda stage, fraction: seen.append(fraction))
        self.assertEqual(report.package_bytes, os.path.getsize(out))
        self.assertTrue(seen and max(seen) <= 1)
        packed = tern.Model(out, temp=0, n_predict=12, threads=2)
        self.assertEqual(packed.info["scheme"], "llm-npu")
        said = program("run", out, "Once upon a time", "--raw", "--temp", "0", "-n", "12", "-t", "2")
        self.assertEqual(packed.complete("Once upon a time"), said.removesuffix("\n"))
        with self.assertRaises(tern.Cancelled):
            tern.pack(src, out + "2", progress=lambda stage, fraction: False)
        self.assertFalse(os.path.exists(out + "2"))

    def test_estimate_and_info(self):
        e = tern.estimate(MODEL, ctx_size=512)
        self.assertEqual((e.arch, e.n_ctx), ("llama", 512))
        self.assertEqual(self.model.info["arch"], "llama")
        self.assertEqual(tern.version(), f"{_abi.TERN_VERSION_MAJOR}.{_abi.TERN_VERSION_MINOR}.{_abi.TERN_VERSION_PATCH}")


def _address(view):
    if _session.numpy is None:
        return ctypes.addressof(view.obj) if hasattr(view.obj, "_length_") else ctypes.addressof(ctypes.c_char.from_buffer(view.obj))
    return view.ctypes.data


def load_tests(loader, tests, pattern):
    tests.addTests(doctest.DocTestSuite(tern))
    return tests


if __name__ == "__main__":
    print("NumPy:", "no" if _session.numpy is None else _session.numpy.__version__)
    unittest.main()
