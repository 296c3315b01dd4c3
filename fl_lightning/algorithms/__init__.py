"""The papers' algorithms, a function each: `algorithms.fedtoga(rho=0.1)`.

A default is the paper's unless `Released code` in the docstring says otherwise. In the docstrings g
is the gradient on the batch, w the client's model, w^t the received one, u_i the one after the last
local step, N the number of clients, M of the cohort S, K of local steps, and eta the local learning
rate. A step or a server that a `Formula` leaves out is FedAvg's; `docs/formulas.py` has its macros.
`registry` lists the algorithms for the command line.
"""

from fl_lightning.algorithms.adaptive import diloco as diloco
from fl_lightning.algorithms.adaptive import fedadamw as fedadamw
from fl_lightning.algorithms.adaptive import fedpac_sophia as fedpac_sophia
from fl_lightning.algorithms.adaptive import local_adamw as local_adamw
from fl_lightning.algorithms.asynchronous import fedasync as fedasync
from fl_lightning.algorithms.asynchronous import fedbuff as fedbuff
from fl_lightning.algorithms.averaging import fedavg as fedavg
from fl_lightning.algorithms.averaging import feddisco as feddisco
from fl_lightning.algorithms.averaging import fednova as fednova
from fl_lightning.algorithms.averaging import fedprox as fedprox
from fl_lightning.algorithms.drift import adabest as adabest
from fl_lightning.algorithms.drift import fedadmm as fedadmm
from fl_lightning.algorithms.drift import fedcm as fedcm
from fl_lightning.algorithms.drift import feddc as feddc
from fl_lightning.algorithms.drift import feddyn as feddyn
from fl_lightning.algorithms.drift import fedssg as fedssg
from fl_lightning.algorithms.drift import fedvra as fedvra
from fl_lightning.algorithms.drift import mimelite as mimelite
from fl_lightning.algorithms.drift import scaffold as scaffold
from fl_lightning.algorithms.fairness import afl as afl
from fl_lightning.algorithms.fairness import qfedavg as qfedavg
from fl_lightning.algorithms.fairness import qffl as qffl
from fl_lightning.algorithms.flatness import fedgf as fedgf
from fl_lightning.algorithms.flatness import fedgloss as fedgloss
from fl_lightning.algorithms.flatness import fedgmt as fedgmt
from fl_lightning.algorithms.flatness import fedmoswa as fedmoswa
from fl_lightning.algorithms.flatness import fednsam as fednsam
from fl_lightning.algorithms.flatness import fedswa as fedswa
from fl_lightning.algorithms.flatness import fedwmsam as fedwmsam
from fl_lightning.algorithms.global_sharpness import fedlesam as fedlesam
from fl_lightning.algorithms.global_sharpness import fedlesam_d as fedlesam_d
from fl_lightning.algorithms.global_sharpness import fedlesam_s as fedlesam_s
from fl_lightning.algorithms.global_sharpness import fedsmoo as fedsmoo
from fl_lightning.algorithms.global_sharpness import fedtoga as fedtoga
from fl_lightning.algorithms.label_skew import feddecorr as feddecorr
from fl_lightning.algorithms.label_skew import fedlc as fedlc
from fl_lightning.algorithms.label_skew import fedrs as fedrs
from fl_lightning.algorithms.lora import fedex_lora as fedex_lora
from fl_lightning.algorithms.lora import fedit as fedit
from fl_lightning.algorithms.lora import fedsa_lora as fedsa_lora
from fl_lightning.algorithms.lora import ffa_lora as ffa_lora
from fl_lightning.algorithms.lora import flora as flora
from fl_lightning.algorithms.lora import hetlora as hetlora
from fl_lightning.algorithms.lora import rolora as rolora
from fl_lightning.algorithms.matrix import fedmuon as fedmuon
from fl_lightning.algorithms.matrix import fedmuon_lmo as fedmuon_lmo
from fl_lightning.algorithms.matrix import fedpac_muon as fedpac_muon
from fl_lightning.algorithms.matrix import local_muon as local_muon
from fl_lightning.algorithms.personal import apfl as apfl
from fl_lightning.algorithms.personal import ditto as ditto
from fl_lightning.algorithms.personal import fedbabu as fedbabu
from fl_lightning.algorithms.personal import fedbn as fedbn
from fl_lightning.algorithms.personal import fedper as fedper
from fl_lightning.algorithms.personal import fedrep as fedrep
from fl_lightning.algorithms.personal import fedsol_ft as fedsol_ft
from fl_lightning.algorithms.personal import knn_per as knn_per
from fl_lightning.algorithms.personal import lg_fedavg as lg_fedavg
from fl_lightning.algorithms.personal import local_only as local_only
from fl_lightning.algorithms.personal import perfedavg as perfedavg
from fl_lightning.algorithms.personal import pfedme as pfedme
from fl_lightning.algorithms.privacy import dp_fedavg as dp_fedavg
from fl_lightning.algorithms.privacy import dp_fedsam as dp_fedsam
from fl_lightning.algorithms.representation import fedgkd as fedgkd
from fl_lightning.algorithms.representation import fedntd as fedntd
from fl_lightning.algorithms.representation import fedrcl as fedrcl
from fl_lightning.algorithms.representation import fedsol as fedsol
from fl_lightning.algorithms.representation import fedsol_ablation as fedsol_ablation
from fl_lightning.algorithms.representation import gradient_projection as gradient_projection
from fl_lightning.algorithms.representation import moon as moon
from fl_lightning.algorithms.robust import centered_clipping as centered_clipping
from fl_lightning.algorithms.robust import fedmedian as fedmedian
from fl_lightning.algorithms.robust import krum as krum
from fl_lightning.algorithms.robust import rfa as rfa
from fl_lightning.algorithms.robust import trimmed_mean as trimmed_mean
from fl_lightning.algorithms.server import fedacg as fedacg
from fl_lightning.algorithms.server import fedadagrad as fedadagrad
from fl_lightning.algorithms.server import fedadam as fedadam
from fl_lightning.algorithms.server import fedams as fedams
from fl_lightning.algorithms.server import fedavgm as fedavgm
from fl_lightning.algorithms.server import fedexp as fedexp
from fl_lightning.algorithms.server import fedinit as fedinit
from fl_lightning.algorithms.server import fedvarp as fedvarp
from fl_lightning.algorithms.server import fedyogi as fedyogi
from fl_lightning.algorithms.sharpness import fedasam as fedasam
from fl_lightning.algorithms.sharpness import fedgamma as fedgamma
from fl_lightning.algorithms.sharpness import fedsam as fedsam
from fl_lightning.algorithms.sharpness import fedspeed as fedspeed
from fl_lightning.algorithms.sharpness import mofedsam as mofedsam
