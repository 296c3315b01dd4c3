"""Flower's example for PyTorch Lightning, ours, and a bare loop, in turn: seconds of the program.

    python benchmarks/flower_lightning.py --mnist ../shared/data/mnist --flower VENV/bin/python

VENV has flwr[simulation], lightning and torchvision. The example (examples/quickstart-pytorch-
lightning of adap/flower): an auto-encoder of MNIST, 4 clients, 2 of them in each of 3 rounds train
an epoch of 9,000 images with Adam in batches of 32 and score 3,000 for validation; 2 then score
3,000 for testing. Here Flower is given the images as tensors, without Hugging Face data sets,
download, transforms of single images, progress bars and checkpoints, all of which the example has.
The bare loop takes as many steps and scores as many images, without rounds: what imports, data and
PyTorch take.
"""

import subprocess
import sys
from argparse import ArgumentParser
from time import perf_counter
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import MNIST

CLIENTS, ROUNDS = 4, 3


class AutoEncoder(LightningModule):
    """784-64-3-64-784."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 784))

    def distance(self, batch: Any) -> Tensor:
        """The mean squared error of the images and what is decoded of them."""
        x = batch[0].view(len(batch[0]), -1)
        return mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The loss, which is logged."""
        loss = self.distance(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        """Logs the loss."""
        self.log("val_loss", self.distance(batch))

    def test_step(self, batch: Any, index: int) -> None:
        """Logs the loss."""
        self.log("test_loss", self.distance(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def images(folder: str) -> tuple[Tensor, Tensor]:
    """All 60,000, shuffled, between 0 and 1, with their labels."""
    data = MNIST(folder, train=True)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(42))
    return data.data[order, None].float() / 255, data.targets[order]


def flower(folder: str) -> None:
    """Flower's client starts a Trainer for an epoch."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    quiet |= {"enable_model_summary": False, "enable_checkpointing": False}

    class Client(NumPyClient):
        def __init__(self, client: int) -> None:
            rows = TensorDataset(*(t.chunk(CLIENTS)[client] for t in images(folder)))
            parts = torch.utils.data.random_split(rows, [9000, 3000, 3000])
            self.loaders = [DataLoader(part, 32, shuffle=k == 0) for k, part in enumerate(parts)]
            self.module = AutoEncoder()

        def put(self, weights: Any) -> None:
            names = self.module.state_dict()
            self.module.load_state_dict(dict(zip(names, map(torch.tensor, weights), strict=True)))

        def fit(self, weights: Any, config: Any) -> Any:
            self.put(weights)
            Trainer(max_epochs=1, **quiet).fit(self.module, *self.loaders[:2])
            return [t.numpy() for t in self.module.state_dict().values()], 9000, {}

        def evaluate(self, weights: Any, config: Any) -> Any:
            self.put(weights)
            loss = Trainer(**quiet).test(self.module, self.loaders[2], verbose=False)[0]
            return loss["test_loss"], 3000, {"loss": loss["test_loss"]}

    def client(context: Any) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    def server(context: Any) -> ServerAppComponents:
        initial = [t.numpy() for t in AutoEncoder().state_dict().values()]
        from flwr.common import ndarrays_to_parameters

        strategy = FedAvg(
            fraction_fit=0.5,
            fraction_evaluate=0.5,
            initial_parameters=ndarrays_to_parameters(initial),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=client), num_supernodes=CLIENTS)


def ours(folder: str) -> None:
    """The same rows of the same clients."""
    import fl_lightning as fl

    x, y = images(folder)
    owners = torch.arange(CLIENTS).repeat_interleave(len(x) // CLIENTS)
    part = torch.arange(len(x)) % 15000 // 3000  # 3 fifths train
    val, test = (part == 3), (part == 4)
    train = part < 3
    data = fl.FederatedData(
        (x[train], y[train]),
        test=(x[test], y[test]),
        validation=(x[val], y[val]),
        clients=owners[train],
    )
    module = AutoEncoder()
    options: dict[str, Any] = {"rounds": ROUNDS, "participation": 0.5, "batch_size": 32}
    trainer = fl.FederatedTrainer("fedavg", local_epochs=1, evaluate_every=1, **options)
    trainer.fit(module, data)
    print(trainer.test(data=data))


def bare(folder: str) -> None:
    """As many steps of one model, and as many images scored."""
    x, y = images(folder)
    rows, module = TensorDataset(x[:9000], y[:9000]), AutoEncoder()
    optimizer = module.configure_optimizers()
    for _ in range(ROUNDS * CLIENTS // 2):
        for batch in DataLoader(rows, 32, shuffle=True):
            optimizer.zero_grad()
            module.distance(batch).backward()
            optimizer.step()
        with torch.no_grad():
            for batch in DataLoader(TensorDataset(x[9000:15000], y[9000:15000]), 32):
                module.distance(batch)


PROGRAMS = {"flower": flower, "ours": ours, "bare": bare}

if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--mnist", required=True, help="the folder of torchvision's MNIST")
    parser.add_argument("--flower", required=True, help="a Python that has Flower")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--program", choices=PROGRAMS)
    o = parser.parse_args()
    if o.program:
        PROGRAMS[o.program](o.mnist)
        sys.exit()
    for _ in range(o.turns):
        for name in PROGRAMS:
            python = o.flower if name == "flower" else sys.executable
            began, again = perf_counter(), [*sys.argv, "--program", name]
            subprocess.run([python, *again], check=True, capture_output=True)
            print(f"{name}: {perf_counter() - began:.1f} s", flush=True)
