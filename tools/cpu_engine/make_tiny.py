"""Makes a tiny Llama with random weights; run by path, inside the engine's environment.

    python make_tiny.py OUT_DIR

Two layers, 64 wide, one token per byte: a real model for a real engine, in a fraction of a megabyte. Its answers are
noise, but always the same noise: the seed is fixed.
"""

from __future__ import annotations

import sys

import torch  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

SPECIAL = ("<bos>", "<eos>", "<pad>")
SEED = 7
CONTEXT = 8192


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each byte, after the special tokens, so that it covers any text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def random_llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main(out_dir: str) -> None:
    tokenizer = byte_tokenizer()
    random_llama(len(tokenizer)).save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)


if __name__ == "__main__":
    main(sys.argv[1])
