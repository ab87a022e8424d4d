"""What is said of optimizers beside the private one that see the data, or could."""

from __future__ import annotations

SWAPPED = (
    "The gradient of {who}, which another optimizer than that of {private} trains, changes when other records are in "
    "the batch: it sees the data, with neither clipping nor noise. So it is with feature matching, with a term that "
    "compares generated records with real ones, and with labels of the batch that generated records are made for. "
    "{stopped} Let it learn from nothing but what {private} says of generated records, and draw their labels at random."
)
FEWER = (
    "The gradient of {who}, which another optimizer than that of {private} trains, changes with the number of records "
    "in the batch, which is drawn at random and which no noise hides. {stopped} Generate the same number of records "
    "for its step every time (self.batch_size, and not len(batch)), apart from those for the step of {private}; and "
    "draw random numbers with PyTorch."
)
CARRIED = (
    "The gradient of {who}, which another optimizer than that of {private} trains, depends on the records of the batch "
    "before: the module carries something of them over. {stopped} Begin every batch with a fresh state."
)
ELSEWHERE = (
    "{who}, which another optimizer than that of {private} trains, was stepped along another gradient than the one it "
    "has when other records are in the batch: a hook of the module or of another callback changes it, or it sees the "
    "data. {stopped} Change gradients in training_step, without a look at the batch."
)
OUTSIDE = (
    "{who}, which another optimizer than that of {private} trains, was stepped outside of training_step, in a hook of "
    "the module or of another callback: whether it sees the data there cannot be shown. {stopped} Step it in "
    "training_step; or, if no training data are in it, vouch for the hook: "
    'DifferentialPrivacy(post_processing=["on_train_epoch_end"]).'
)
NEVER_THE_SAME = (
    "The gradient of {who}, which another optimizer than that of {private} trains, is not the same when a batch is run "
    "again with the same random numbers, so that nobody can tell whether it sees the data. {stopped} Draw random "
    "numbers with PyTorch."
)
