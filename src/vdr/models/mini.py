"""The mini backbone's configuration: transformers' own Qwen2.5-VL classes at one million parameters."""

from __future__ import annotations

from pathlib import Path

from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from vdr.corpus import vocabulary as words
from vdr.corpus.draw import HEIGHT, WIDTH
from vdr.corpus.layouts import reading_words
from vdr.models.prompts import DESCRIBE_PROMPT, RATE_PROMPT, YES_NO_PROMPT
from vdr.models.tokenizer import train_tokenizer

__all__ = ["VOCABULARY", "mini_config", "mini_image_processor", "mini_tokenizer", "save_checkpoint"]

VOCABULARY = 1536


def mini_tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer in which every word of the miniature, every rating and every year is one token."""
    vocabulary = reading_words()
    texts = [" " + " ".join(vocabulary)] * 200 + ["query: describe the image. user\nassistant\nyes no"] * 200
    texts += [RATE_PROMPT, YES_NO_PROMPT, DESCRIBE_PROMPT, "You are a helpful assistant.\nsystem\n"] * 200
    texts += [str(n) for n in range(101)] * 60 + [f" {y}" for y in (*words.COMMON["year"], *words.RARE["year"])] * 400
    texts += [f" {n}" for n in range(1000)] * 2
    return train_tokenizer(texts, VOCABULARY)


def mini_image_processor() -> Qwen2VLImageProcessorPil:
    """Qwen's image processor, bounded to one page's pixels."""
    pixels = HEIGHT * WIDTH
    return Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, temporal_patch_size=2, size={"shortest_edge": pixels // 4, "longest_edge": pixels}
    )


def mini_config(
    tokenizer: PreTrainedTokenizerBase, *, text_layers: int = 3, width: int = 96, tied: bool = True
) -> Qwen2_5_VLConfig:
    """Configuration of the mini backbone (three language layers) or teacher (more, and an output head of its own)."""
    ids = {
        t: tokenizer.convert_tokens_to_ids(t)
        for t in ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    }
    pad, eos = tokenizer.convert_tokens_to_ids("<|endoftext|>"), tokenizer.convert_tokens_to_ids("<|im_end|>")
    head = width // 4
    text = {
        "vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": text_layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-6, "use_sliding_window": False, "max_window_layers": text_layers,
        "bos_token_id": pad, "eos_token_id": eos, "pad_token_id": pad,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [head // 6] * 3},
    }  # fmt: skip
    vision = {
        "depth": 3, "hidden_size": width, "intermediate_size": 2 * width, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "window_size": 112, "out_hidden_size": width, "fullatt_block_indexes": [0, 1, 2],
        "tokens_per_second": 2,
    }  # fmt: skip
    return Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=tied,
    )  # fmt: skip


def save_checkpoint(
    model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Write a checkpoint directory in the hub's format: configuration, safetensors, tokenizer, image processor."""
    eos, pad = tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.convert_tokens_to_ids("<|endoftext|>")
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=eos, pad_token_id=pad, max_new_tokens=48)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    mini_image_processor().save_pretrained(folder)
