"""What each method sends, keeps and computes, in models."""

import pytest
import torch
from problems import EVERY_ALGORITHM, classification, classifier, federation, term

from fl_lightning import Algorithm, Term, algorithms, scalar, zeros
from fl_lightning.core.rehearsal import Cost, rehearse
from fl_lightning.core.vector import Layout
from fl_lightning.terms import AcceleratedStart, Clip, Proximal

D = 99
"""Parameters of the classifier."""
NUMBER, BLOCKS = 1 / D, 6 / D
BODY, NORM = (6 * 8 + 8 + 2 * 8) / D, 2 * 8 / D
"""One number, one a parameter, the classifier without its head, its normalization, in models."""

# Gradients a step, models sent up, down, kept by a client, kept by the server besides the model.
# From the tables of the papers' survey. Where they leave a choice:
# * SCAFFOLD's family (FedDC and FedSSG too) sends c_i besides the model (2 up).
# * FedSpeed, FedDC and FedSSG with an active mean send the update and the dual; the tables count
#   amended models u_i + h_i; FedInit sends its shift where the server takes the mean of the models.
# * FedLESAM by the last round sends w^(t-1) down from the server; FedTOGA sends Delta down.
# * FedWMSAM's server could send m_i, which it can make of c_i, in the place of m and c (2 down).
# * FedNova's clients report their path length, one number; a FedSSG client counts its visits.
# * FedVARP's clients keep y_i and send what their move differs from it; the paper's server keeps
#   all y_i.
# * FedAdamW sends one number a parameter; DiLoCo's clients keep the number of their steps.
# * FedSOL of the head runs the body once; its Table 10 is in two passes, as written.
COSTS = {
    (1, 1, 1, 0, 0): "fedavg; fedprox; feddisco; fedntd; fedrcl; fedsol; fedsol, fixed; "
    "fedsol_ft; knn_per; fedswa; local_adamw; local_muon; qffl; dp_fedavg; fedmedian; "
    "trimmed_mean; krum; rfa; fedexp; feddecorr; fedrs; fedlc",
    (1, 1 + NUMBER, 1 + NUMBER, 0, NUMBER): "dp_fedavg, adaptive",
    (1, 1 + 3 * NUMBER, 1, 0, 0): "fednova",
    (1, 2 + 3 * NUMBER, 2, 1, 1): "fednova, mean",
    (1, 1, 1, 2, 0): "fedadmm; fedadmm, start",
    (1, 1, 1, 1 + NUMBER, 1): "adabest",
    (1, 1, 2 + NUMBER, 0, 5 + NUMBER): "fedgkd",
    (1, 1, 1, 1, 1): "feddisco, on feddyn; feddyn; feddyn, norm; fedvarp; fedvra; fedvra, d",
    (1, 1, 1, 0, 2): "fedadam; fedyogi; fedadagrad",
    (1, 1, 1, 0, 3): "fedams; fedams, sum",
    (1, 1, 1, 0, 1): "fedavgm; fedacg; centered_clipping",
    (2, 1, 1, 0, 1): "fednsam; fednsam, as released",
    (1, 1, 1, 1, 0): "fedinit; fedlesam; fedlesam, skip; moon; fedmuon_lmo, local; "
    "fedadmm, as released",
    (1, 2, 1, 1, 0): "fedinit, models",
    (1, 1, 2, 0, 1): "fedcm; fedlesam, last round; fedlesam, as released; fednsam, momentum",
    (1, 1 + NUMBER, 3 + NUMBER, 1, 2 + NUMBER): "fedwmsam; fedwmsam, as released; fedwmsam, steps",
    (1, 2, 2, 1, 1): "scaffold; fedsol, scaffold; fedgmt, active dual; fedmoswa; "
    "fedmuon_lmo; fedmuon_lmo, exact",
    (2, 1, 1, 1, 2): "fedgloss",
    (1, 1, 1, 1, 2): "fedgloss, released dual",
    (2, 1 + NUMBER, 2 + NUMBER, 0, 1 + 31 * NUMBER): "fedgf; fedgf, often",
    (1, 2, 2, 2, 2): "feddc",
    (1, 1 + BLOCKS, 2 + BLOCKS, 0, 1 + BLOCKS): "fedadamw; fedadamw, language",
    (1, 2, 3, 0, 2): "fedadamw, vision; fedmuon; fedmuon, low rank; fedpac_muon; fedpac_sophia; "
    "fedpac_sophia, signs",
    (1, 1, 1, 2 + NUMBER, 1): "diloco",
    (1, 3, 2, 2, 1): "feddc, active",
    (1, 2, 2, 2 + NUMBER, 2): "fedssg; fedssg, running gate; fedssg, proximal",
    (1, 3, 2, 2 + NUMBER, 2): "fedssg, active",
    (2, 1, 1, 0, 0): "fedsam; fedasam; fedsol, all; fedsol, by tensor; fedsol_ablation; "
    "gradient_projection; perfedavg; dp_fedsam",
    (2, 1, 2, 0, 1): "mofedsam",
    (2, 2, 2, 0, 1): "mimelite",
    (2, 2, 2, 1, 1): "fedgamma",
    (2, 1, 1, 1, 1): "fedspeed; fedspeed, raw ascent, half",
    (2, 2, 1, 1, 0): "fedspeed, active dual",
    (2, 2, 2, 2, 2): "fedsmoo; fedsmoo, as released",
    (1, 2, 2, 2, 1): "fedlesam_s",
    (1, 2, 3, 1, 2): "fedlesam_s, last round",
    (1, 1, 1, 2, 1): "fedlesam_d; fedlesam_d, skip",
    (2, 1, 2, 1, 2): "fedtoga; fedtoga, fusion; fedtoga, over epochs; fedtoga, as a "
    "gradient; fedtoga, active dual; fedtoga, as released",
    (1, 1, 2, 1, 2): "fedtoga, neighbor; fedgmt",
    (1, 1, 2, 2, 2): "fedtoga, neighbor carried",
    (2, 1, 2, 2, 2): "fedtoga, fusion carried",
    (1, BODY, BODY, 0, 0): "fedbabu",
    (1, BODY, BODY, 1 - BODY, 0): "fedper; fedrep",
    (1, 1 - BODY, 1 - BODY, BODY, 0): "lg_fedavg",
    (1, 1 - NORM, 1 - NORM, NORM, 0): "fedbn",
    (2, 1, 1, 1, 0): "ditto; apfl",
    (2, 1, 1, 1 + NUMBER, 0): "apfl, adaptive",
    (5, 1, 1, 1, 0): "pfedme",
    (1, 1 + 2 * NUMBER, 1, 0, 0): "qfedavg",
    (1, 1 + 6 * NUMBER, 1 + 6 * NUMBER, 0, 6 * NUMBER): "afl",
    (1, 0, 0, 1, 0): "local_only",
    (1, 1, 1, 0, 4 + 6 * NUMBER): "fedbuff; fedasync",
}
TABLE = {name: row for row, names in COSTS.items() for name in names.split("; ")}

CLIENTS = {dtype: classification(dtype=dtype) for dtype in (torch.float32, torch.float64)}


def cost_of(algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> Cost:
    return federation(algorithm, module=classifier(dtype=dtype), clients=CLIENTS[dtype]).cost


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_the_cost_of_a_method_is_that_of_the_survey(name):
    algorithm = EVERY_ALGORITHM[name]
    clipped = algorithm.with_outer_terms(Clip(0.1))
    for c in (cost_of(algorithm, torch.float32), cost_of(clipped)):
        vectors = (n / D for n in (c.uplink, c.downlink, c.client_state, c.server_state))
        assert TABLE[name] == pytest.approx((c.gradients, *vectors))
        assert c.exact


@pytest.mark.parametrize(
    ("row", "gradients"), [("a0", 1), ("a1", 2), ("a2", 3), ("a4", 2), ("a5", 1)]
)
def test_the_rows_of_fedsols_ablation_ask_for_the_gradients_in_their_formulas(row, gradients):
    """A2 takes l at w and p at w and w + e; the sum of both losses is one pass in A4 and A5."""
    assert cost_of(algorithms.fedsol_ablation(row)).gradients == gradients


@pytest.mark.parametrize(
    ("algorithm", "receives", "keeps"),
    [
        (algorithms.fedsmoo(), ["model", "s"], ["mu_i", "h_i"]),
        (algorithms.fedssg(), ["model", "d"], ["h_i", "d_i", "count"]),
        (algorithms.fedacg(), ["start"], []),
        (Algorithm(Proximal(), AcceleratedStart()), ["start", "model"], []),
        (algorithms.local_only(), [], ["w_i"]),
    ],
    ids=str,
)
def test_what_is_received_and_kept_has_names(algorithm, receives, keeps):
    c = cost_of(algorithm)
    assert (list(c.receives), list(c.keeps)) == (receives, keeps)


class Chatty(Term):
    """Sends a number, its progress three times over, and what nobody can know; reads one state."""

    server = {"read": zeros, "unread": zeros}
    client = {"count": scalar}

    def gradient(self, oracle, w, v):
        return oracle.of(lambda b: b.loss.square())(w) + v.read

    def report(self, w, v):
        v.count = v.count + 1
        return v.count, 3 * (w - v.origin), (w - v.origin).square()


def test_only_what_the_other_side_cannot_know_is_counted():
    c = cost_of(Algorithm(Chatty()))
    assert (c.uplink, c.downlink, c.client_state, c.server_state) == (2 * D + 1, 2 * D, 1, 2 * D)


def test_a_message_that_replaces_the_update_needs_the_model_of_which_it_is_made():
    signs = term(
        report=lambda self, w, v: v.weight * (w - v.anchor).sign(),
        update=lambda self, delta, mean, v: 0.01 * mean,
    )
    c = cost_of(Algorithm(signs))
    assert (c.uplink, c.messages) == (D, 0)


class Fair(Term):
    """Weighs clients by a power of their loss, and sends it and their labels."""

    local = {"F": scalar}

    def gradient(self, oracle, w, v):
        v.F = v.F + (oracle.loss(w) + oracle.part(0, 2).of(lambda b: 2 * b.loss).loss(w)).sqrt()
        return oracle(w) * v.F.log()

    def report(self, w, v):
        return v.F, v.labels


def test_asking_for_the_loss_is_no_gradient_and_needs_no_more_than_the_model():
    c = cost_of(Algorithm(Fair()))
    assert (c.gradients, c.uplink, c.downlink) == (1, D + 1 + 3, D)
    assert c.forward_passes == 2


class SecondMoment(Term):
    """Divides by the root of a running mean of squares, which its server keeps."""

    server = {"v": zeros}
    local = {"u": zeros}

    def gradient(self, oracle, w, v):
        g = oracle(w)
        v.u = 0.9 * v.u + 0.1 * g * g
        return g / (v.v.sqrt() + v.u.sqrt() + 1e-8)

    def report(self, w, v):
        return (v.origin - w) / v.lr_sum

    def update(self, delta, mean, v):
        v.v = 0.9 * v.v + 0.1 * mean * mean
        return delta


def test_a_second_moment_is_counted_with_numbers_that_have_a_root():
    """The message is a multiple of the progress."""
    c = cost_of(Algorithm(SecondMoment()))
    assert (c.uplink, c.downlink, c.exact) == (D, 2 * D, True)


def keep(self, w, v):
    v.kept = w
    return ()


def store(self, w, v):
    v.kept = v.kept * v.a + v.b / v.c
    return w


STARTS = {
    "a mixture that the client's kept state decides": (
        lambda self, w, v: v.a * v.kept + v.b * v.kept.square() + v.c,
        3,
    ),
    "stored in the kept state": (store, 4),
    "a sum that the server can send as one vector": (lambda self, w, v: v.a + v.b + v.c, 1),
}


@pytest.mark.parametrize("case", STARTS)
def test_states_received_for_a_start_are_one_vector_only_if_the_server_can_make_it(case):
    start, received = STARTS[case]
    states = {"client": {"kept": zeros}, "server": dict.fromkeys("abc", zeros)}
    mixed = term(start=start, report=keep, **states)
    assert cost_of(Algorithm(mixed)).downlink == received * D


class Taught(Term):
    """Learns from the server's teacher, in a loss, and looks at the loss before the step."""

    server = {"teacher": zeros, "other": zeros}
    features = False

    def gradient(self, oracle, w, v):
        def loss(b):
            if self.features:
                b.activations["inner"][1] @ torch.ones(8, 1, dtype=w.dtype)
            return b.loss + (b.out - b.at(v.teacher).out).square().mean()

        return oracle.of(loss, "inner")(w) * oracle.loss(w)


class TaughtFeatures(Taught):
    """Its loss needs activations of the model's width."""

    features = True


def test_what_a_loss_reads_is_received_and_forward_passes_are_counted():
    c = cost_of(Algorithm(Taught()))
    assert (c.gradients, c.forward_passes, c.receives) == (1, 2, ("model", "teacher"))
    assert c.exact


def test_what_could_not_be_counted_is_said():
    run = federation(Algorithm(TaughtFeatures()))
    assert (run.cost.receives, run.cost.exact) == (("model", "other", "teacher"), False)


def test_a_rehearsal_does_not_touch_the_global_generator():
    layout = Layout(classifier())
    before = torch.get_rng_state()
    rehearse(EVERY_ALGORITHM["fedtoga"], layout, torch.zeros(layout.size))
    assert torch.get_rng_state().equal(before)
