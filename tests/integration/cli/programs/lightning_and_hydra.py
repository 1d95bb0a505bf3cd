"""The training of dp_or_ddp.py by Lightning, its arguments by Hydra, as the tutorial has them.

torchrun --nnodes=2 … lightning_and_hydra.py trainer.num_nodes=2
"""

import hydra
import pytorch_lightning
import torch
from dp_or_ddp import BATCH_SIZE, build_model, load_data
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Points(pytorch_lightning.LightningModule):
    def __init__(self, learning_rate):
        super().__init__()
        self.model, self.learning_rate = build_model(), learning_rate

    def training_step(self, batch, _):
        points, labels = batch
        return cross_entropy(self.model(points), labels)

    def validation_step(self, batch, _):
        points, labels = batch
        loss = cross_entropy(self.model(points), labels)
        self.log("val/plain", loss, on_epoch=True, batch_size=len(labels))
        self.log("val/synced", loss, on_epoch=True, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.learning_rate)


@hydra.main(version_base=None, config_path=".", config_name="points")
def main(config):
    pytorch_lightning.seed_everything(2)
    train_set, test_set = load_data()
    trainer = pytorch_lightning.Trainer(**config.trainer)
    module = Points(config.learning_rate)
    trainer.fit(module, DataLoader(train_set, BATCH_SIZE // trainer.world_size, shuffle=True, num_workers=2))
    [metrics] = trainer.validate(module, DataLoader(test_set, 16), verbose=False)
    print(f"rank {trainer.global_rank}: {dict(metrics)}", flush=True)
    if trainer.is_global_zero:
        torch.save(module.model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
