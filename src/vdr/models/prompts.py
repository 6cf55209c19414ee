"""The teacher's prompts. The page stands before the query, so that a page's prefix is computed once (WT App. B)."""

from __future__ import annotations

__all__ = ["DESCRIBE_PROMPT", "RATE_PROMPT", "YES_NO_PROMPT", "chat"]

# WT App. B, word for word.
RATE_PROMPT = (
    "You are judging visual document retrieval relevance. Above is a document page.\nQuery: {query}\n"
    "Rate how relevant this page is to the query on a scale from 0 (completely irrelevant) to 100 (directly contains the "
    "answer). Respond with only the integer."
)
# App. B names the readout and not its wording: this is ours, with the same opening, so that both readouts share a prefix.
YES_NO_PROMPT = (
    "You are judging visual document retrieval relevance. Above is a document page.\nQuery: {query}\n"
    "Is this page relevant to the query? Respond with only yes or no."
)
# WT §3 and App. J give what a description is (grounded, of the labelled page, for its query) and not its wording.
DESCRIBE_PROMPT = (
    "Above is a document page.\nQuery: {query}\nDescribe the region of this page that answers the query. "
    "Mention only what is on the page."
)


def chat(prompt: str) -> str:
    """A user turn with one page before the text, open for the assistant's reply (Qwen2.5-VL's chat markers)."""
    return (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>" + prompt + "<|im_end|>\n<|im_start|>assistant\n"
    )
