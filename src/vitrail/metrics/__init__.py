"""How good is what came out: measures of a stored model, each with its interval, counts and network."""

FAMILIES = {
    "fd-vitrail": "Fréchet and kernel distance, precision, recall, density, coverage, linear probe; our own network",
    "fd-oracle": "the same in the features of an oracle, a classifier trained on real pictures",
    "fid": "the same in FID's Inception-v3; slow without a GPU, so on fewer samples, and never among the defaults",
    "oracle": "Score and oracle gap of Fan & Liu",
    "pixels": "SSIM and NMSE against real pictures of the same class",
    "classifier": "accuracy of the classifier that a run made, where it made one",
    "learner": "accuracy on real pictures of a classifier trained on generated ones",
}
