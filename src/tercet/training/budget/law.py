"""The loss of a model as a function of its size, tokens and passes: a data-constrained scaling law.

    L / H = e G + a N^-alpha + b (D' + D0)^-beta + c O
    D'    = D                                        up to one pass over the U tokens of the text
    D'    = U (1 + R (1 - exp(-(D / U - 1) / R)))    beyond: a repeated token is worth less than a new one

L is the validation loss in nats per target, H the entropy of counting targets (the loss of a unigram model), G the loss
of the best n-gram model divided by H, N the weights that are multiplied for each token in millions, and D the tokens of
training in millions. The form is that of
Hoffmann et al. (2022, "Chinchilla"), with the repeated tokens of Muennighoff et al. (2023). O, the overfitting of a
small text that is read often (`settings.overfitting`), is added, because more passes over it make a model worse.
D0 makes the curve flatter at its start, because the loss of a model that has not learned anything is finite. Dividing
by H makes the starts of texts and vocabularies comparable, and G their ends.

For fixed exponents alpha and beta and fixed R and D0, the law is linear in e, a, b and c. So their posterior
distribution has a closed form, that of Bayesian linear regression with unknown noise, and the result is an average over
a grid of these constants, weighted by their evidence. The prior distribution comes from trainings on other texts
(`calibration.csv`): for each point of the grid, it has the mean and covariance of the coefficients of these texts.
Nothing is random: equal points give equal forecasts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tercet.training.budget.settings import overfitting

ALPHAS = (0.2, 0.35, 0.5, 1.0)
BETAS = (0.15, 0.25, 0.35, 0.5, 0.7, 0.9)
REPEATS = (2.0, 4.0, 8.0, 64.0)
STARTS = (0.0, 0.03, 0.1, 0.3)  # D0, in millions of tokens
# With these values, intervals contain 90 % of the outcomes of texts that are left out (`scaling.py coverage`).
NOISE, NOISE_POINTS = 0.02, 4.0  # prior standard deviation of L / H, and the number of points that it counts as
WIDENING = 2.0  # factor on the covariance of the coefficients of other texts, which are few
DRAWS = 4000


@dataclass(frozen=True)
class Point:
    """The result of a training.

    Attributes:
        size: Weights that are multiplied for each token.
        tokens: Tokens of training.
        unique: Tokens of the text.
        ngram: Validation loss of the best n-gram model, divided by the entropy of counting targets.
        ratio: Validation loss, divided by the entropy of counting targets; 0 if it is unknown.
    """

    size: float
    tokens: float
    unique: float
    ngram: float
    ratio: float = 0.0


@dataclass(frozen=True)
class Prior:
    """Prior distribution of the coefficients for each point of the grid: log weights, means and covariances.

    Attributes:
        log_weights: (G,) logarithms of the weights of the grid points, up to a constant.
        means: (G, 4) means of e, a, b and c.
        covariances: (G, 4, 4) covariances in units of the noise variance.
    """

    log_weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


@dataclass(frozen=True)
class Law:
    """Posterior distribution of the law for one text.

    Attributes:
        log_weights: (G,) log weights of the grid points.
        means: (G, 4) means of the coefficients.
        covariances: (G, 4, 4) covariances in units of the noise variance.
        shape, scales: Inverse gamma distribution of the noise variance: its shape, and its scale for each grid point.
    """

    log_weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    shape: float
    scales: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        weights = np.exp(self.log_weights - self.log_weights.max())
        return weights / weights.sum()

    def expect(self, point: Point) -> float:
        """Return the mean of L / H for a training."""
        rows = _rows([point])[:, 0]
        return float(self.weights @ np.einsum("gi,gi->g", rows, self.means))

    def draw(self, point: Point) -> np.ndarray:
        """Return draws of L / H from the predictive distribution of a training, (`DRAWS`,), in a fixed order."""
        generator = np.random.default_rng(0)
        rows = _rows([point])[:, 0]
        chosen = generator.choice(len(rows), size=DRAWS, p=self.weights)
        centers = np.einsum("gi,gi->g", rows, self.means)
        spreads = 1.0 + np.einsum("gi,gij,gj->g", rows, self.covariances, rows)
        variances = self.scales[chosen] / generator.gamma(self.shape, size=DRAWS)
        return centers[chosen] + np.sqrt(variances * spreads[chosen]) * generator.standard_normal(DRAWS)


def fit(points: Sequence[Point], prior: Prior) -> Law:
    """Return the posterior distribution of the law, given the results of trainings on one text.

    Args:
        points: Results; empty for the distribution before any result.
        prior: Prior distribution, from `prior_of`.
    """
    rows, targets = _rows(points), np.array([point.ratio for point in points])
    shape, scale = NOISE_POINTS / 2, NOISE**2 * NOISE_POINTS / 2
    precisions = np.linalg.inv(prior.covariances)
    posterior_precisions = precisions + np.einsum("gni,gnj->gij", rows, rows)
    covariances = np.linalg.inv(posterior_precisions)
    pulled = np.einsum("gij,gj->gi", precisions, prior.means) + np.einsum("gni,n->gi", rows, targets)
    means = np.einsum("gij,gj->gi", covariances, pulled)
    squares = (
        float(targets @ targets)
        + np.einsum("gi,gij,gj->g", prior.means, precisions, prior.means)
        - np.einsum("gi,gij,gj->g", means, posterior_precisions, means)
    )
    scales = scale + 0.5 * np.maximum(squares, 0.0)
    new_shape = shape + len(points) / 2
    determinants = 0.5 * (np.linalg.slogdet(covariances)[1] - np.linalg.slogdet(prior.covariances)[1])
    log_weights = prior.log_weights + determinants - new_shape * np.log(scales)
    return Law(log_weights - log_weights.max(), means, covariances, new_shape, scales)


def prior_of(texts: Mapping[str, Iterable[Point]]) -> Prior:
    """Return the prior distribution for a new text, from the results of trainings on other texts.

    Args:
        texts: Results by the name of the text.
    """
    flat = _flat_prior()
    laws = [fit(list(points), flat) for points in texts.values()]
    means = np.mean([law.means for law in laws], axis=0)
    differences = np.stack([law.means for law in laws]) - means  # (texts, G, 4)
    between = np.einsum("tgi,tgj->gij", differences, differences) / max(1, len(laws) - 1)
    noise = np.mean([law.scales / (law.shape - 1) for law in laws], axis=0)  # (G,)
    within = np.mean([law.covariances for law in laws], axis=0)
    covariances = WIDENING * between / noise[:, None, None] + within
    return Prior(np.mean([law.log_weights for law in laws], axis=0), means, covariances)


def _flat_prior() -> Prior:
    """Return a prior distribution that is nearly flat within plausible values of the coefficients."""
    grid = len(ALPHAS) * len(BETAS) * len(REPEATS) * len(STARTS)
    spread = np.array([0.3, 0.3, 0.3, 0.03]) / NOISE
    means = np.tile([0.5, 0.1, 0.3, 0.01], (grid, 1))
    return Prior(np.zeros(grid), means, np.tile(np.diag(spread**2), (grid, 1, 1)))


def _rows(points: Sequence[Point]) -> np.ndarray:
    """Return the regressors of e, a, b and c for each grid point and result, (G, n, 4)."""
    overfit = np.array([overfitting(point.size, point.tokens / point.unique, point.unique) for point in points])
    sizes, tokens, unique = (
        np.array([getattr(point, name) for point in points]) / 1e6 for name in ("size", "tokens", "unique")
    )
    ngram = np.array([point.ngram for point in points])
    columns = []
    for alpha, beta, repeats, start in product(ALPHAS, BETAS, REPEATS, STARTS):
        effective = effective_tokens(tokens, unique, repeats) + start
        columns.append(np.stack([ngram, sizes**-alpha, effective**-beta, overfit], axis=-1))
    return np.stack(columns)


def effective_tokens(tokens: np.ndarray, unique: np.ndarray, repeats: float) -> np.ndarray:
    """Return the number of new tokens that are worth as much as `tokens` tokens of a text of `unique` tokens.

    Args:
        tokens, unique: Numbers of tokens in any unit, of equal shapes.
        repeats: Constant R of the law, in passes.
    """
    repeated = np.maximum(tokens / unique - 1.0, 0.0)
    return np.minimum(tokens, unique) + unique * repeats * -np.expm1(-repeated / repeats)
