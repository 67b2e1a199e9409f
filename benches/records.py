"""The records that the benches store: synthetic, seeded, and about as compressible as real ones."""

from __future__ import annotations

import numpy as np


def images(count: int, seed: int = 0) -> np.ndarray:
    """CHW RGB images, ``(count, 3, 224, 224)`` uint8: smooth shading under sensor noise, 147 KiB each."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 200, 224, dtype=np.float32)
    shading = ramp[None, :] * rng.uniform(0.2, 1.0, (count, 3, 1, 1)).astype(np.float32)
    noise = rng.integers(0, 6, (count, 3, 224, 224), dtype=np.uint8)
    return (shading + ramp[:, None] / 8).astype(np.uint8) + noise


def token_blocks(count: int, seed: int = 1) -> np.ndarray:
    """Token identifiers with the frequencies of words, ``(count, 512)`` int32: 2 KiB each."""
    return _tokens(count * 512, seed).reshape(count, 512)


def token_sequences(count: int, seed: int = 2) -> list[np.ndarray]:
    """Sequences of 4 to 512 token identifiers, 73 in the mean, as separate arrays."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(4.03, 0.72, count), 4, 512).astype(np.int64)
    tokens = _tokens(int(lengths.sum()), seed)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def _tokens(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.minimum(rng.zipf(1.3, count), 50_256).astype(np.int32)
