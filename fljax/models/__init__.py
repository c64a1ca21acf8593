"""Flax models named in the papers, and the functional view of any flax module."""

from typing import TYPE_CHECKING

from fljax import _rooms
from fljax.models.classifiers import CNN as CNN
from fljax.models.classifiers import MLP as MLP
from fljax.models.classifiers import NAMES as NAMES
from fljax.models.classifiers import Softmax as Softmax
from fljax.models.classifiers import StackedLSTM as StackedLSTM
from fljax.models.classifiers import check_name as check_name
from fljax.models.classifiers import create as create
from fljax.models.classifiers import listed as listed
from fljax.models.classifiers import names as names
from fljax.models.classifiers import register as register
from fljax.models.functions import Functional as Functional
from fljax.models.functions import functional as functional
from fljax.models.losses import LOSSES as LOSSES
from fljax.models.losses import NetworkLoss as NetworkLoss
from fljax.models.losses import binary_cross_entropy as binary_cross_entropy
from fljax.models.losses import evaluate as evaluate
from fljax.models.losses import next_token as next_token
from fljax.models.losses import softmax_cross_entropy as softmax_cross_entropy
from fljax.models.losses import squared_error as squared_error
from fljax.models.others import replace_batch_norm as replace_batch_norm

if TYPE_CHECKING:
    from fljax.models import classifiers as classifiers
    from fljax.models import decoder as decoder
    from fljax.models import functions as functions
    from fljax.models import image_nets as image_nets
    from fljax.models import layers as layers
    from fljax.models import lora as lora
    from fljax.models import losses as losses
    from fljax.models import others as others
    from fljax.models import scaling as scaling
    from fljax.models import tasks as tasks
    from fljax.models import vision_transformer as vision_transformer
    from fljax.models import weights as weights
else:
    __getattr__, __dir__ = _rooms.doors(__name__)
