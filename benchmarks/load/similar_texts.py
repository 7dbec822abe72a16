"""Time and memory of finding similar texts, as `validation: {kind: similarity}` and `tercet data look --similarity` do.

    OMP_NUM_THREADS=1 python -m benchmarks.load.similar_texts --texts 100000

The texts are made of random words (seed 1) of a vocabulary of 20,000, drawn by Zipf's law. A tenth are near duplicates
of another text, with one other word. All are compared twice: for clusters, and for a tenth of them with the rest.
"""

import argparse
import resource
import time

import numpy as np

from tercet.data.min_hash import MinHash, find_clusters, find_similar, hash_signatures


def make_texts(count: int, words: int) -> list[str]:
    """Return `count` texts of `words` words."""
    generator = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    vocabulary = ["".join(generator.choice(letters, generator.integers(2, 10))) for _ in range(20_000)]
    share = 1 / np.arange(1, len(vocabulary) + 1)
    numbers = generator.choice(len(vocabulary), (count, words), p=share / share.sum())
    n_copies = count // 10
    numbers[-n_copies:] = numbers[:n_copies]
    numbers[-n_copies:, words // 2] = generator.integers(0, len(vocabulary), n_copies)
    return [" ".join(vocabulary[number] for number in row) for row in numbers.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--words", type=int, default=30)
    parser.add_argument("--threshold", type=float, default=0.8)
    args = parser.parse_args()
    texts = make_texts(args.texts, args.words)
    print(f"{len(texts):,} texts of {sum(map(len, texts)) / len(texts):.0f} characters, threshold {args.threshold:g}")
    start = time.process_time()
    hasher = MinHash(5)
    for text in texts:
        hasher.add(text)
    signatures = hasher.signatures()
    print(f"signatures  {time.process_time() - start:6.1f} s of processor time")
    start = time.process_time()
    clusters = np.unique(find_clusters(signatures, args.threshold, hash_signatures(signatures)))
    print(f"clusters    {time.process_time() - start:6.1f} s, {len(clusters):,}")
    start = time.process_time()
    is_validation = np.random.default_rng(2).random(len(texts)) < 0.1
    leaks = find_similar(signatures[is_validation], signatures[~is_validation], args.threshold)
    print(f"leaks       {time.process_time() - start:6.1f} s, {leaks.sum():,} of {len(leaks):,}")
    print(f"memory      {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB")


if __name__ == "__main__":
    main()
