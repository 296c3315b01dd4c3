"""Why a simulator leaves an equation: what it does there, and the line of its package.

A line is named by some of its words, so that it is found again in the pinned version.
"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Verdict:
    """One difference.

    Attributes:
        what: What the simulator does, and what the paper says.
        file: The file of its package.
        words: Words that only the line has.
        whose: Who leaves the equation.
        options: With these ours equals the simulator.
    """

    what: str
    file: str
    words: str
    whose: str = "simulator"
    options: dict[str, float] = field(default_factory=dict)

    def place(self, packages: Path) -> str:
        """`file:line` in the installed package."""
        lines = (packages / self.file).read_text().splitlines()
        (number,) = [n for n, line in enumerate(lines, start=1) if self.words in line]
        return f"`{self.file}:{number}`"


TWICE = (
    "The server's rate is used twice: for the step, and before it for the move of the mean. "
    "v starts at 0; the paper asks for at least tau^2."
)
FROM_ZERO = "v starts at 0; the paper asks for at least tau^2."
OPEN, CHOICE = "open in the paper", "no FedAdam of its own"

VERDICTS = {
    ("pfl", "scaffold"): Verdict(
        "Option II adds (u_i - w) / (K lr) to c_i; the paper adds (w - u_i) / (K lr). c is then "
        "minus a gradient, and drift grows.",
        "pfl/algorithm/scaffold.py",
        "local_c_plus += model_diff.apply_elementwise",
    ),
    ("pfl", "scaffold_first"): Verdict(
        "Option I has the same sign. Besides, the c_i of all clients share the memory of the last "
        "difference of models: from a client's second visit on c does not move.",
        "pfl/algorithm/scaffold.py",
        "local_c_plus = model.get_model_difference",
    ),
    ("pfl", "fedadam"): Verdict(
        "The server takes an optimizer of PyTorch. This is `torch.optim.Adam`, which corrects the "
        "bias of both moments, and whose v starts at 0. The paper's Algorithm 2 corrects none.",
        "pfl/model/pytorch.py",
        "self._central_optimizer.step()",
        CHOICE,
    ),
    ("flower", "fedadam"): Verdict(
        "The bias is corrected, with the exponent of the next round; the paper corrects none. "
        "v starts at 0; the paper asks for at least tau^2.",
        "flwr/serverapp/strategy/fedadam.py",
        "np.sqrt(1 - np.power(self.beta_2, server_round + 1.0))",
    ),
    ("flower", "fedyogi"): Verdict(
        FROM_ZERO,
        "flwr/serverapp/strategy/fedyogi.py",
        "self.v_t = {k: np.zeros_like",
        options={"v0": 0.0},
    ),
    ("flower", "fedadagrad"): Verdict(
        FROM_ZERO,
        "flwr/serverapp/strategy/fedadagrad.py",
        "self.v_t = {k: np.zeros_like",
        options={"v0": 0.0},
    ),
    ("fluke", "scaffold"): Verdict(
        "`global_step` multiplies the mean of the models, so that the weights shrink; in the paper "
        "the rate multiplies the mean move. At 1 fluke is equal.",
        "fluke/algorithms/scaffold.py",
        "self.hyper_params.global_step * weights[c]",
    ),
    ("fluke", "fednova"): Verdict(
        "The weights p_i tau_eff / a_i multiply models; in the paper they multiply moves. Their "
        "sum is not 1 if clients take different numbers of steps; with equal numbers it is.",
        "fluke/algorithms/fednova.py",
        "torch.true_divide",
    ),
    ("fluke", "fedavgm"): Verdict(
        "The first round sets the momentum to 0 and steps along it: its training is lost.",
        "fluke/algorithms/fedavgm.py",
        "self.momentum_vector = state_dict_zero_like",
    ),
    **{
        ("fluke", name): Verdict(
            TWICE, "fluke/algorithms/fedopt.py", "self.hyper_params.update(mode=mode"
        )
        for name in ("fedadam", "fedyogi", "fedadagrad")
    },
    ("fluke", "feddyn"): Verdict(
        "The dual has the other sign, and is multiplied by alpha twice. The server adds the mean "
        "dual of the cohort, not of all. A new client starts at the mean without duals. alpha is "
        "divided by a client's relative size, as in the authors' code.",
        "fluke/algorithms/feddyn.py",
        "                penalty = alpha_coef_adpt * torch.sum(",
    ),
    ("fluke", "moon"): Verdict(
        "A client that never trained compares with the received model; ours with w^0. In the "
        "paper all clients train in each round, and then both are equal.",
        "fluke/algorithms/moon.py",
        "self.prev_model = deepcopy(model)",
        OPEN,
    ),
    ("fluke", "fedsam"): Verdict(
        "The gradient of a step is not cleared, and is added to that of the next ascent.",
        "fluke/algorithms/fedsam.py",
        "        self.second_step()",
    ),
    ("fedlab", "fednova"): Verdict(
        "The default option multiplies the mean by the number of all clients over that of the "
        "cohort, though its weights sum to 1 over the cohort. `option='uniform'` does not.",
        "fedlab/contrib/algorithm/fednova.py",
        "* N / K",
    ),
    ("fedlab", "feddyn"): Verdict(
        "The regularizer is computed from detached weights, so it has no gradient and clients take "
        "plain steps (line 74 and this one). The server's h subtracts w once from the sum over the "
        "cohort, not once for each client (line 23).",
        "fedlab/contrib/algorithm/feddyn.py",
        "l3 = torch.sum(torch.pow(",
    ),
}
