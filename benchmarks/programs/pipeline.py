"""digits, its images through a DataLoader one by one, as most programs have them: `--workers` is how many load."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2] / "train"))

import digits
import torch
from ddp.loader import Batches
from ddp.options import arguments
from ddp.trainer import Trainer
from ddp.world import launch
from step_cost import benchmark


class OneByOne(torch.utils.data.Dataset):
    """What a TensorDataset holds, with the usual two steps per image: to floats, and to a mean of 0."""

    def __init__(self, data):
        images, self.labels = data.tensors
        self.images = (images * 16).to(torch.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return (self.images[index].float() / 16 - 0.3) / 0.38, self.labels[index]


def measure(world, options):
    data, _ = digits.load_data(digits.DATA / "digits.csv.gz")
    torch.manual_seed(options.seed)
    model = digits.build_model().to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), digits.LEARNING_RATE)
    batches = Batches(world, options, OneByOne(data), workers=options.workers)
    benchmark(Trainer(world, options, "digits", model, optimizer, batches, digits.metrics))


parser = arguments(__doc__, digits.TOTAL_EPOCHS, digits.SAVE_EVERY, digits.BATCH_SIZE, digits.SEED)
parser.add_argument("--workers", type=int, default=2)
launch(measure, parser.parse_args())
