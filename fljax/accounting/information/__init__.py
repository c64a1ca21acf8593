"""Nats instead of epsilon: what noisy records, or noisy uploads, tell on average, and the error
that leaves.

channel (noise for a budget) -> exposure (uses of each record) -> `Leakage` in nats -> `ErrorBound`
-> PSNR. Every answer carries `certified`, `reason` and `covariance_source`. Averages, never a
privacy guarantee for one record, and never an epsilon: see `NOT_PROMISED` and
docs/explain/information.md.
"""

from fljax.accounting.information import printed
from fljax.accounting.information.budget import (
    CorrelatedRecordsWarning,
    CountMode,
    Exposure,
    after_uses,
    expose,
    label_entropy,
    max_uses,
    mixed,
    paper_linear,
    paper_rounds,
    per_use,
    spend,
    start,
    total,
)
from fljax.accounting.information.channels import (
    Channel,
    clipped_upload,
    min_power,
    natural,
    personalized,
    range_certified,
    white,
    without_noise,
)
from fljax.accounting.information.clipped import private_sgd_nats, private_sgd_nats_from_epsilon
from fljax.accounting.information.compression import (
    Compressed,
    compressed,
    large_batch,
    selection_nats,
)
from fljax.accounting.information.reconstruction import (
    Entropy,
    distortion_rate,
    gaussian_entropy,
    gaussian_projected,
    linear_error,
    projected,
    theorem1,
)
from fljax.accounting.information.results import (
    Claim,
    CovarianceSource,
    DataModel,
    ErrorBound,
    Leakage,
    psnr_of_mse,
)
from fljax.accounting.information.statements import NOT_PROMISED, statement
from fljax.accounting.information.sums import secure_sum_leakage
from fljax.accounting.information.uploads import (
    Uploads,
    count_upload,
    estimated_upload,
    uploads_total,
)

__all__ = [
    "NOT_PROMISED",
    "Channel",
    "Claim",
    "Compressed",
    "CorrelatedRecordsWarning",
    "CountMode",
    "CovarianceSource",
    "DataModel",
    "Entropy",
    "ErrorBound",
    "Exposure",
    "Leakage",
    "Uploads",
    "after_uses",
    "clipped_upload",
    "compressed",
    "count_upload",
    "distortion_rate",
    "estimated_upload",
    "expose",
    "gaussian_entropy",
    "gaussian_projected",
    "label_entropy",
    "large_batch",
    "linear_error",
    "max_uses",
    "min_power",
    "mixed",
    "natural",
    "paper_linear",
    "paper_rounds",
    "per_use",
    "personalized",
    "printed",
    "private_sgd_nats",
    "private_sgd_nats_from_epsilon",
    "projected",
    "psnr_of_mse",
    "range_certified",
    "secure_sum_leakage",
    "selection_nats",
    "spend",
    "start",
    "statement",
    "theorem1",
    "total",
    "uploads_total",
    "white",
    "without_noise",
]
