"""Makes a tiny Idefics3 with random weights, for pictures; run by path, inside the engine's environment.

    python make_tiny_vision.py OUT_DIR

A SigLIP of one layer before a Llama of two, and the byte tokenizer of make_tiny.py with the marks of pictures. A
picture is sent as a whole and in up to nine tiles, each of 16 tokens. Among vLLM's models with vision, this model
needs only Pillow to prepare pictures: LLaVA, Qwen-VL, Gemma 3 and InternVL need torchvision.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from tokenizers import AddedToken  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)

SEED = 7
CONTEXT = 8192
TILE = 128
PATCH = 16
# This many patches on each side of a square become one token.
SHUFFLE = 2
TOKENS_OF_A_TILE = (TILE // PATCH // SHUFFLE) ** 2
MOST_TILES = 3
PLACES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
MARKS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *PLACES)


def marked_tokenizer() -> PreTrainedTokenizerFast:
    """Return the byte tokenizer, with a token for each mark that the processor writes around pictures and tiles."""
    tokenizer = runpy.run_path(str(Path(__file__).with_name("make_tiny.py")))["byte_tokenizer"]()
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS], special_tokens=True)
    return tokenizer


def picture_processor(tokenizer: PreTrainedTokenizerFast) -> Idefics3Processor:
    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": TILE * MOST_TILES}, max_image_size={"longest_edge": TILE}, do_image_splitting=True
    )
    return Idefics3Processor(pictures, tokenizer, image_seq_len=TOKENS_OF_A_TILE)


def random_idefics3(tokenizer: PreTrainedTokenizerFast) -> Idefics3ForConditionalGeneration:
    torch.manual_seed(SEED)
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": TILE,
        "patch_size": PATCH,
    }
    config = Idefics3Config(
        text_config=text,
        vision_config=vision,
        scale_factor=SHUFFLE,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    return Idefics3ForConditionalGeneration(config).to(torch.bfloat16)


def main(out_dir: str) -> None:
    tokenizer = marked_tokenizer()
    random_idefics3(tokenizer).save_pretrained(out_dir)
    picture_processor(tokenizer).save_pretrained(out_dir)


if __name__ == "__main__":
    main(sys.argv[1])
