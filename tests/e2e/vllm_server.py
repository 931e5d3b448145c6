"""A real vLLM on the CPU with a model that is made here: `vllm_server.py VLLM FOLDER PORT`, VLLM being its program.

No model has to be fetched. The weights make a Llama that says a token by looking at the one before it: after a letter
the next one, and after `z` the end; after a digit the next one, for ever; after `@` a tool call; after `#` a tool call
that it gives up in the middle of the arguments; after anything else the end. The chat template is the bare contents, so
the last character of a prompt is what is answered. It imports nothing of this project and needs the standard library.
"""

from __future__ import annotations

import array
import json
import os
import string
import struct
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

WIDTH = 320
"""Size of the vocabulary and of a hidden state, which is one-hot; five attention heads of 64 that do nothing."""
CONTEXT = 8192
SHARPNESS = 4.0
"""How far what follows is ahead of the rest: so far that no temperature of 0 to 2 makes anything else likely."""
END = "<|end|>"
WHOLE_CALL = ("<tool_call>\n", '{"name": "add", ', '"arguments": {"a": ', "1 ", "}}", "\n</tool_call>")
BROKEN_CALL = ('<tool_call>\n{"name": "add", ', '"arguments": {"a": 2, "note": "', "never ")
SAYINGS = (
    (*string.ascii_lowercase, END),
    (*string.digits, " ", "0"),
    ("@", *WHOLE_CALL, END),
    ("#", *BROKEN_CALL, END),
)
"""What follows what. A token follows one other, so no two sayings share one that is not a single byte."""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OPTIONS = {
    "--host": "127.0.0.1",
    "--served-model-name": "tiny",
    "--dtype": "float32",
    "--max-model-len": str(CONTEXT),
    "--max-num-seqs": "8",
    "--tool-call-parser": "hermes",
}
SWITCHES = ("--enforce-eager", "--enable-auto-tool-choice")


def write_model(folder: Path) -> None:
    """Write what `vllm serve` takes as a model. The folder exists."""
    vocabulary = {letter: number for number, letter in enumerate(_letters())}
    for saying in SAYINGS:
        for token in saying:
            vocabulary.setdefault(_spelled(token), len(vocabulary))
    end = vocabulary[END]
    nexts = dict.fromkeys(range(WIDTH), end)
    for saying in SAYINGS:
        nexts.update((vocabulary[_spelled(one)], vocabulary[_spelled(other)]) for one, other in pairwise(saying))
    pages = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": WIDTH,
            "hidden_size": WIDTH,
            "intermediate_size": WIDTH,
            "num_hidden_layers": 1,
            "num_attention_heads": WIDTH // 64,
            "num_key_value_heads": WIDTH // 64,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "bos_token_id": None,
            "eos_token_id": end,
        },
        "generation_config.json": {"eos_token_id": end},
        "tokenizer.json": _tokenizer(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": CONTEXT,
            "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
        },
    }
    for name, page in pages.items():
        (folder / name).write_text(json.dumps(page), encoding="utf-8")
    _write_weights(folder / "model.safetensors", nexts)


def _letters() -> list[str]:
    """The letters that stand for the 256 bytes in a byte-level vocabulary.
    Source: `bytes_to_unicode` of OpenAI's GPT-2 encoder, which every byte-level BPE follows."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def _spelled(token: str) -> str:
    """The token as the vocabulary spells it."""
    letters = _letters()
    return token if token == END else "".join(letters[byte] for byte in token.encode())


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, object]:
    """A byte-level BPE without merges: a prompt is its bytes, and only an answer has the longer tokens."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": vocabulary[END], "content": END, "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def _write_weights(path: Path, nexts: dict[int, int]) -> None:
    """The embedding is the identity, the output layer is who follows whom, the layer between adds nothing.
    Source: format of safetensors: 8 bytes length, a JSON header, the numbers."""
    zeros = _square(())
    ones = array.array("f", [1.0]) * WIDTH
    layer = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    layer += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    tensors = {
        "model.embed_tokens": _square((number, number) for number in range(WIDTH)),
        **{f"model.layers.0.{name}": zeros for name in layer},
        "model.layers.0.input_layernorm": ones,
        "model.layers.0.post_attention_layernorm": ones,
        "model.norm": array.array("f", [SHARPNESS]) * WIDTH,
        "lm_head": _square((after, before) for before, after in nexts.items()),
    }
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        size = len(tensor) * tensor.itemsize
        shape = [WIDTH] if len(tensor) == WIDTH else [WIDTH, WIDTH]
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for tensor in tensors.values():
            tensor.tofile(file)


def _square(places: Iterable[tuple[int, int]]) -> array.array[float]:
    """A matrix with ones at these rows and columns."""
    matrix = array.array("f", [0.0]) * (WIDTH * WIDTH)
    for row, column in places:
        matrix[row * WIDTH + column] = 1.0
    return matrix


def main() -> None:
    program, folder, port = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    write_model(folder)
    options = [word for pair in OPTIONS.items() for word in pair]
    words = [program, "serve", str(folder), "--port", port, *options, *SWITCHES]
    os.execve(program, words, {**os.environ, **ENVIRONMENT})


if __name__ == "__main__":
    main()
