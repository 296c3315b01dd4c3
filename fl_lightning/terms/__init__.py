"""The terms: each one idea of the papers, in the paper's letters.

`fl_lightning.terms.released` has what only released code does.

Imports `core` and below.
"""

from fl_lightning.terms.adaptive import AdamW as AdamW
from fl_lightning.terms.adaptive import Alignment as Alignment
from fl_lightning.terms.adaptive import Sophia as Sophia
from fl_lightning.terms.client_models import ClientModels as ClientModels
from fl_lightning.terms.distill import Contrastive as Contrastive
from fl_lightning.terms.distill import Distill as Distill
from fl_lightning.terms.distill import NotTrueDistillation as NotTrueDistillation
from fl_lightning.terms.distill import RelaxedContrastive as RelaxedContrastive
from fl_lightning.terms.drift import CenteredGradientVariate as CenteredGradientVariate
from fl_lightning.terms.drift import ClientMomentum as ClientMomentum
from fl_lightning.terms.drift import Clip as Clip
from fl_lightning.terms.drift import ControlVariate as ControlVariate
from fl_lightning.terms.drift import MovingVariate as MovingVariate
from fl_lightning.terms.drift import Proximal as Proximal
from fl_lightning.terms.dual import SSG as SSG
from fl_lightning.terms.dual import CohortDual as CohortDual
from fl_lightning.terms.dual import CohortLinearDual as CohortLinearDual
from fl_lightning.terms.dual import DynamicRegularizer as DynamicRegularizer
from fl_lightning.terms.dual import FedVRADual as FedVRADual
from fl_lightning.terms.dual import LinearDual as LinearDual
from fl_lightning.terms.dual import StartDual as StartDual
from fl_lightning.terms.fairness import Agnostic as Agnostic
from fl_lightning.terms.fairness import FairStep as FairStep
from fl_lightning.terms.fairness import LossWeight as LossWeight
from fl_lightning.terms.lesam import LESAM as LESAM
from fl_lightning.terms.lesam import LastRound as LastRound
from fl_lightning.terms.lora import AlternateRounds as AlternateRounds
from fl_lightning.terms.lora import ExactAggregation as ExactAggregation
from fl_lightning.terms.lora import Stacking as Stacking
from fl_lightning.terms.lora import UnequalRanks as UnequalRanks
from fl_lightning.terms.matrix import LMO as LMO
from fl_lightning.terms.matrix import CorrectedLMO as CorrectedLMO
from fl_lightning.terms.matrix import Muon as Muon
from fl_lightning.terms.personal import Alternate as Alternate
from fl_lightning.terms.personal import Ditto as Ditto
from fl_lightning.terms.personal import FirstOrderMAML as FirstOrderMAML
from fl_lightning.terms.personal import LocalOnly as LocalOnly
from fl_lightning.terms.personal import Personal as Personal
from fl_lightning.terms.perturb import ASAM as ASAM
from fl_lightning.terms.perturb import GSAM as GSAM
from fl_lightning.terms.perturb import MSAM as MSAM
from fl_lightning.terms.perturb import SAM as SAM
from fl_lightning.terms.perturb import SMOO as SMOO
from fl_lightning.terms.perturb import TOGA as TOGA
from fl_lightning.terms.perturb import Neighbor as Neighbor
from fl_lightning.terms.perturb import VaSSO as VaSSO
from fl_lightning.terms.privacy import AdaptiveClipping as AdaptiveClipping
from fl_lightning.terms.privacy import GaussianMechanism as GaussianMechanism
from fl_lightning.terms.sending import Quantize as Quantize
from fl_lightning.terms.sending import Sign as Sign
from fl_lightning.terms.sending import TopK as TopK
from fl_lightning.terms.server import AcceleratedStart as AcceleratedStart
from fl_lightning.terms.server import AdaptiveServer as AdaptiveServer
from fl_lightning.terms.server import NormalizedAveraging as NormalizedAveraging
from fl_lightning.terms.server import RelaxedInitialization as RelaxedInitialization
from fl_lightning.terms.server import ServerMomentum as ServerMomentum
from fl_lightning.terms.sol import SOL as SOL
from fl_lightning.terms.sol import GradientProjection as GradientProjection
from fl_lightning.terms.sol import HeadSOL as HeadSOL
from fl_lightning.terms.trajectory import GF as GF
from fl_lightning.terms.trajectory import WMSAM as WMSAM
from fl_lightning.terms.trajectory import NesterovAscent as NesterovAscent
from fl_lightning.terms.trajectory import ServerSAM as ServerSAM
from fl_lightning.terms.trajectory import TrajectoryTeacher as TrajectoryTeacher
