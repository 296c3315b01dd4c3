"""Next characters of a text with a Transformer or an LSTM; no download, topics are clients.

python recipes/text.py
python recipes/text.py --model char_lstm --lr 1
python recipes/text.py --data text_folder --data-dir path/to/folder
"""

from fl_lightning.data.row_sources import topics
from fl_lightning.experiment import Experiment
from fl_lightning.models import char_transformer

if __name__ == "__main__":
    Experiment(
        data=[topics],
        models=[char_transformer],
        algorithm="fedavgm",
        partition="by_domain",
        clients=None,
        participation=0.1,
        rounds=100,
        local_epochs=1,
        batch_size=20,
        lr=0.3,
        metric=("accuracy", "perplexity"),
        evaluate_every=5,
        doc=__doc__,
    ).run()
