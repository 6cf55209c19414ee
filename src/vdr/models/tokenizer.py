"""The miniature's tokenizer: a byte-level BPE in Qwen's file format, trained on the words of the miniature's world.

It keeps Qwen2.5-VL's special tokens and chat markers, so that prompts, processors and the model's configuration are
those of the real checkpoint. It lower-cases, which the real one does not: with a vocabulary of 1,536, one entry a word is
what a backbone of a million parameters can learn to read.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["SPECIAL_TOKENS", "train_tokenizer", "word_token_ids"]

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on ``texts``; the order of ``texts`` does not matter, their counts do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=32768,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def word_token_ids(tokenizer: PreTrainedTokenizerFast, word: str) -> list[int]:
    """Token ids of a word as it stands inside a sentence (with the space before it), punctuation stripped."""
    bare = word.strip(":;,.*-?!()").lower()
    return tokenizer(" " + bare, add_special_tokens=False)["input_ids"] if bare else []


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    tokenizer.save_pretrained(folder)
