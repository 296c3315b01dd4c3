r"""A folder of images on 100 clients with Dirichlet labels.

Folders train/<class>/*.jpg and test/<class>/*.jpg:

    python recipes/image_folder.py --data-dir path/to/folder
    python recipes/image_folder.py --data-dir path/to/folder \
        --data.size 64 --model resnet18_gn

Folders <domain>/<class>/*.jpg, one domain a client and one held out for testing:

    python recipes/image_folder.py --data domain_folder --data.test-domain Art \
        --partition by_domain --clients 30
"""

from fl_lightning.data import CropFlip, image_folder
from fl_lightning.experiment import Experiment
from fl_lightning.models import lenet

if __name__ == "__main__":
    Experiment(
        data=[image_folder],
        models=[lenet],
        augment=CropFlip(padding=4, crop=0.5, flip=0.5),
        algorithm="fedtoga",
        partition={"name": "dirichlet", "alpha": 0.1},
        clients=100,
        participation=0.1,
        rounds=60,
        local_epochs=2,
        batch_size=50,
        lr=0.1,
        lr_decay=0.998,
        weight_decay=1e-3,
        clip_norm=10.0,
        doc=__doc__,
    ).run()
