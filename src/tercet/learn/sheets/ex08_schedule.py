"""Exercise 8: Learning rate with warm-up.

At the start the gradients are large and Adam knows little about them, so the learning rate rises linearly. Then it
decays as half a cosine. With the peak r, W warm-up steps of S steps in total, and the final share f, step s has:

    (s + 1) / W * r                                  if s < W
    (f + (1 - f) (1 + cos(pi p)) / 2) * r            otherwise, with p = (s - W) / (S - 1 - W)

Steps are counted from 0. Step 0 has a rate above zero, step W - 1 has the peak, and the last step, S - 1, has f * r.
Later steps keep the rate f * r.

Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 8`.

Paper: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017).
"""


def learning_rate(step: int, peak: float, warmup: int, total: int, final: float = 0.1) -> float:
    """Return the learning rate of a step.

    Args:
        step: Step, counted from 0.
        peak: Largest learning rate.
        warmup: Number of warm-up steps, which may be 0.
        total: Number of steps of the run, at least `warmup` + 2.
        final: Learning rate of the last step, as a share of the peak.
    """
    raise NotImplementedError
