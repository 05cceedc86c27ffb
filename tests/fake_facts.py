"""What the fake engine of `tests.fakes` is and says of itself."""

from __future__ import annotations

from engine.records import DrafterInfo, DrafterOption, EngineInfo

VOCAB_SIZE = 49152
# Tokens as the bytes they spell: "한" in three pieces and the emoji in two, as byte-level tokenizers split them.
PIECES: tuple[bytes, ...] = (
    b" the", b" cat", b" sat", b"\xed", b"\x95", b"\x9c", "글".encode(), b" <b>", b"&amp;", b"\n", b"  ",
    b"\xf0\x9f", b"\x91\x8d", b" on", b" a", b" mat", b".",
)  # fmt: skip

DRAFTERS: tuple[DrafterInfo, ...] = (
    DrafterInfo("null", "None (plain decoding)", "Drafts nothing: the baseline.", True, gamma=0),
    DrafterInfo(
        "ngram",
        "N-gram (prompt lookup)",
        "Copies what followed the last words earlier in the context.",
        True,
        (DrafterOption("min_n", "Shortest match", 1, 1, 8), DrafterOption("max_n", "Longest match", 3, 1, 8)),
    ),
    DrafterInfo(
        "lookahead",
        "Lookahead",
        "Collects n-grams from a Jacobi window and verifies them as a tree.",
        True,
        (
            DrafterOption("window", "Window W", 5, 1, 16),
            DrafterOption("ngram", "N-gram length N", 4, 2, 8),
            DrafterOption("guesses", "Guesses G", 5, 1, 16),
        ),
    ),
    DrafterInfo(
        "draft_model",
        "Draft model",
        "A smaller model drafts, the target checks.",
        True,
        available=False,
        reason="no draft model is loaded; start with --draft-model FOLDER_OR_ID",
    ),
)

INFO = EngineInfo(
    model="fake/model",
    model_hash="0" * 64,
    architecture="llama",
    parameters=134_515_008,
    weight_bytes=269_030_016,
    vocab_size=VOCAB_SIZE,
    max_model_len=8192,
    dtype="fp32",
    device="cpu",
    threads=1,
    kv_budget_bytes=1 << 30,
    kv_bytes_per_token=46_080,
    draft_model=None,
    drafters=DRAFTERS,
)
