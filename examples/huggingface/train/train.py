"""A small GPT-2 with random weights, trained by the Trainer of Hugging Face on sums that the script makes itself; nothing is fetched.
By hand: torchrun --nproc-per-node 2 train.py"""

import argparse

import slipway_events
import slipway_huggingface
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SIGNS = {sign: number for number, sign in enumerate("0123456789+=.")}


class Sums(Dataset):
    """Texts such as 017+005=022. of which each sign is a token."""

    def __len__(self) -> int:
        return 100 * 100

    def __getitem__(self, index: int):
        first, second = divmod(index, 100)
        ids = torch.tensor([SIGNS[sign] for sign in f"{first:03d}+{second:03d}={first + second:03d}."])
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-steps", type=int, default=300)
    options = parser.parse_args()

    torch.manual_seed(0)
    net = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(SIGNS), n_positions=12, n_embd=options.width, n_layer=2, n_head=4, eos_token_id=12, bos_token_id=12)
    )
    arguments = TrainingArguments(
        output_dir="trained",
        max_steps=slipway_events.start().total_steps or options.max_steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=1e-3,
        logging_steps=100,
        logging_nan_inf_filter=False,  # it would wait for the GPU after each batch
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=net, args=arguments, train_dataset=Sums())
    slipway_huggingface.follow(trainer, tokens=lambda inputs: inputs["labels"].numel())
    trainer.train()


if __name__ == "__main__":
    main()
