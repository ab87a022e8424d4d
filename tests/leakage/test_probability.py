"""Leak probabilities against brute force: all texts, all tokenizations, all edits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lightning_exposure import Decoder, LeakEstimate, SecretFormat, SecretTree, leak_probability
from lightning_exposure.adapters import Seq2SeqAdapter
from lightning_exposure.errors import ArgumentError, SecretError
from lightning_exposure.modules import EncoderDecoder
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer
from tests import oracle
from tests.leakage import brute_force
from tests.toys import Constant, MergingTokenizer, Recurrent, Stateless, sharpened

CHARACTERS = "abdinpsy 0123456789-"


def bytes_bpe() -> Tokenizer:
    """Byte-level BPE with tokens of several digits, and some that reach over the end of a secret."""
    letters = [*"abdinpsy0123456789-", "Ġ"]
    merges = [("1", "2"), ("12", "7"), ("7", "-"), ("Ġ", "3"), ("7", "b"), ("2", "1"), ("4", "4")]
    vocabulary = {token: i for i, token in enumerate([*letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram() -> Tokenizer:
    """Unigram with a sign for spaces."""
    tokens = ["▁pin", "▁is", "▁", "12", "27", "▁1", "77", "2-", *"abdinpsy0123456789-"]
    scores = [("<unk>", 0.0), *((token, -1.0 - 0.1 * i) for i, token in enumerate(tokens))]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def wordpiece() -> Tokenizer:
    tokens = ["[UNK]", "pin", "is", "12", "1", "##2", "##27", "##7", "##b", "3", "##3", "4"]
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


class Setting:
    """A tokenizer and a model; what brute force needs of both."""

    def __init__(self, tokenizer: Any, pattern: str, model: Any = Recurrent, **words: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.format = SecretFormat(pattern, **words)
        size = tokenizer.get_vocab_size() if isinstance(tokenizer, Tokenizer) else tokenizer.vocab_size
        self.model = sharpened(model(size), seed=5, scale=1.5)
        self.tree = SecretTree(self.model, self.format, tokenizer)

    def prompt(self, text: str | None = None) -> list[int]:
        encoded = self.tokenizer.encode(self.format.prompt if text is None else text)
        return list(encoded.ids if isinstance(self.tokenizer, Tokenizer) else encoded)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def truth(self, texts: set[str], prompt: str | None = None, chances: Any = brute_force.softmax) -> float:
        return brute_force.probability(self.model, self.prompt(prompt), self.decode, texts, chances)


@cache
def setting(name: str) -> Setting:
    return {
        "characters": lambda: Setting(CharTokenizer.from_text(CHARACTERS), "pin is ##"),
        "stateless": lambda: Setting(CharTokenizer.from_text(CHARACTERS), "pin is ##", Stateless),
        "merged": lambda: Setting(MergingTokenizer(CHARACTERS), "pin is ##-#"),
        "words": lambda: Setting(WordTokenizer.from_text("the pin is 1 2 3 4 5 6 7 8 9 0 12 1b"), "the pin is # #"),
        "words in lines": lambda: Setting(
            WordTokenizer.from_text("to: ann bob\noak elm street 1 12"),
            "to:\n{who} {who}\n{street} street",
            who=["ann", "bob"],
            street=["oak", "elm"],
        ),
        "byte-level BPE": lambda: Setting(bytes_bpe(), "pin is ##-#"),
        "BPE without a space": lambda: Setting(bytes_bpe(), "pin#{end}", end=["-", "b"]),
        "Unigram": lambda: Setting(unigram(), "pin is ##-"),
        "Unigram, in a word": lambda: Setting(unigram(), "pin ##"),
        "WordPiece": lambda: Setting(wordpiece(), "pin is {n}", n=["127", "123", "12", "3"]),
        "words of different lengths": lambda: Setting(
            CharTokenizer.from_text(CHARACTERS), "say {x}", x=["a", "ab", "abba", "b", "ba"]
        ),
    }[name]()


ALL = [
    "characters",
    "stateless",
    "merged",
    "words",
    "words in lines",
    "byte-level BPE",
    "BPE without a space",
    "Unigram",
    "Unigram, in a word",
    "WordPiece",
    "words of different lengths",
]


def assert_tight(estimate: LeakEstimate, truth: float, tolerance: float = 0.011) -> None:
    assert estimate.low <= truth <= estimate.high
    assert estimate.high - estimate.low <= tolerance * estimate.low + 1e-300


@pytest.mark.parametrize("name", ALL)
def test_probability_is_that_of_brute_force(name: str) -> None:
    case = setting(name)
    for index in {0, case.format.size // 3, case.format.size - 1}:
        secret = case.format.render(index)
        (estimate,) = leak_probability(case.tree, [secret])
        truth = case.truth({secret})
        assert truth > 0.0
        assert_tight(estimate, truth)
        assert estimate.verbatim == (estimate.low, estimate.high)


@pytest.mark.parametrize("name", ["merged", "byte-level BPE", "Unigram"])
def test_other_tokenizations_are_more_than_the_canonical_one(name: str) -> None:
    """What the interval would miss if only the tokenizer's own spelling counted."""
    case = setting(name)
    secret = case.format.render(127 if case.format.size > 127 else 12)
    (estimate,) = leak_probability(case.tree, [secret], tolerance=1e-6)
    path = case.tree.paths([secret])
    canonical = 2.0 ** -oracle.cost(
        case.model, [*case.tree.spelling.root, *path[0][path[0] >= 0].tolist()], len(case.tree.spelling.root)
    )
    assert estimate.low > 1.001 * canonical


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("decoder", [Decoder(0.6), Decoder(1.4, 6), Decoder(1.0, None, 0.7), Decoder(0.9, 8, 0.85)])
def test_decoder_is_that_of_generate(name: str, decoder: Decoder) -> None:
    case = setting(name)
    chances = brute_force.as_transformers_does(decoder.temperature, decoder.top_k, decoder.top_p)
    for index in (0, case.format.size // 2):
        secret = case.format.render(index)
        (estimate,) = leak_probability(case.tree, [secret], decoder)
        truth = case.truth({secret}, chances=chances)
        assert_tight(estimate, truth)
        assert (estimate.queries(0.5) is None) == (truth == 0.0)


def test_the_interval_holds_wherever_the_walk_stops() -> None:
    case = setting("byte-level BPE")
    secret = "pin is 12-7"
    truth = case.truth({secret})
    widths = []
    for budget in (1, 2, 3, 5, 8, 20):
        (estimate,) = leak_probability(case.tree, [secret], budget=budget, tolerance=1e-9)
        assert estimate.low <= truth <= estimate.high
        assert estimate.expansions <= budget
        widths.append(estimate.high - estimate.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 100 * widths[-1]


# --- near misses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "secret", "blanks"),
    [
        ("characters", "pin is 42", {7: "0123456789", 8: "0123456789"}),
        ("merged", "pin is 12-7", {7: "0123456789", 8: "0123456789", 10: "0123456789"}),
        ("byte-level BPE", "pin is 12-7", {7: "0123456789", 8: "0123456789", 10: "0123456789"}),
        ("Unigram", "pin is 27-", {7: "0123456789", 8: "0123456789"}),
        ("words", "the pin is 1 2", {11: "0123456789", 13: "0123456789"}),
    ],
)
@pytest.mark.parametrize("edits", [1, 2])
def test_substitutions_are_those_of_brute_force(name: str, secret: str, blanks: dict[int, str], edits: int) -> None:
    case = setting(name)
    texts = brute_force.within_substitutions(case.format, secret, blanks, edits)
    (estimate,) = leak_probability(case.tree, [secret], edits=edits)
    assert_tight(estimate, case.truth(texts))
    assert {miss.text for miss in estimate.near_misses} <= texts - {secret}
    for miss in estimate.near_misses[:3]:
        assert miss.low <= case.truth({miss.text}) <= miss.high
    assert estimate.verbatim[0] <= case.truth({secret}) <= estimate.verbatim[1]
    lows = [miss.low for miss in estimate.near_misses]
    assert lows == sorted(lows, reverse=True)
    assert estimate.low == pytest.approx(estimate.verbatim[0] + sum(lows), rel=1e-9)  # each once


@pytest.mark.parametrize("name", ["characters", "byte-level BPE"])
def test_full_levenshtein_is_that_of_brute_force(name: str) -> None:
    case = setting(name)
    secret = "pin is 42" if name == "characters" else "pin is 12-7"
    prompt, rest = "pin is ", secret[7:]
    alphabet = "0123456789" if name == "characters" else "0123456789-"
    texts = brute_force.within_levenshtein(prompt, rest, alphabet, 1)
    (estimate,) = leak_probability(case.tree, [secret], edits=1, levenshtein=True)
    assert_tight(estimate, case.truth(texts))
    assert {miss.text for miss in estimate.near_misses} <= texts - {secret}
    for miss in estimate.near_misses[:4]:  # those that begin others, too
        assert miss.low <= case.truth({miss.text}) <= miss.high
    assert estimate.verbatim[0] <= case.truth({secret}) <= estimate.verbatim[1]


def test_an_edit_stays_within_what_its_blank_allows() -> None:
    case = setting("words of different lengths")
    (estimate,) = leak_probability(case.tree, ["say ab"], edits=1, tolerance=1e-12)
    # The first character of a word is an "a" or a "b", the second a "b" or an "a"; the prompt is not edited.
    assert {miss.text for miss in estimate.near_misses} == {"say aa", "say bb"}


def test_a_check_digit_may_be_edited_like_any_other() -> None:
    format = SecretFormat("card ##", checksum="luhn")
    tokenizer = CharTokenizer.from_text("card 0123456789")
    tree = SecretTree(sharpened(Recurrent(tokenizer.vocab_size), seed=1), format, tokenizer)
    (estimate,) = leak_probability(tree, [format.render(3)], edits=1, tolerance=1e-12)
    assert len(estimate.near_misses) == 18


def test_near_misses_are_a_table_in_which_what_differs_is_marked() -> None:
    case = setting("characters")
    (estimate,) = leak_probability(case.tree, ["pin is 42"], edits=1)
    header, *rows = estimate.table(5, reveal=True).split("\n")
    assert header.split() == ["bits", "probability", "edits", "text"]
    assert len(rows) == 5
    marks = [row.split("pin is ")[1] for row in estimate.table(100, reveal=True).split("\n")[1:]]
    assert "42" in marks
    assert "[4]7" not in marks
    assert {"4[7]", "[1]2"} <= set(marks)


# --- share --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_shares_of_a_format_add_up_to_one(name: str) -> None:
    case = setting(name)
    estimates = leak_probability(case.tree, oracle.all_texts(case.format)[:400], budget=1)
    total = sum(estimate.share for estimate in estimates)
    assert total == pytest.approx(1.0, rel=1e-9) if len(estimates) == case.format.size else total < 1.0


def test_share_is_the_product_of_renormalised_probabilities() -> None:
    case = setting("characters")
    digits = case.tokenizer.encode("0123456789")
    tokens, expected = case.prompt(), 1.0
    for digit in case.tokenizer.encode("42"):
        with torch.no_grad():
            logits = case.model(torch.tensor([tokens]))[0][0, -1] / 0.5
        expected *= float(torch.softmax(logits[digits], 0)[digits.index(digit)])
        tokens.append(digit)
    (estimate,) = leak_probability(case.tree, ["pin is 42"], Decoder(temperature=0.5))
    assert estimate.share == pytest.approx(expected, rel=1e-9)


# --- what surrounds it --------------------------------------------------------------------------------------


def test_the_prompt_is_what_the_tree_starts_with() -> None:
    case = setting("byte-level BPE")
    part = case.tree.starting_with("pin is 1")
    (estimate,) = leak_probability(part, ["pin is 12-7"])
    assert_tight(estimate, case.truth({"pin is 12-7"}, prompt="pin is 1"))


@pytest.mark.parametrize("name", ["characters", "words", "byte-level BPE", "Unigram", "WordPiece"])
def test_an_attacker_may_leave_out_the_end_of_the_prompt(name: str) -> None:
    """Without the space at its end, a token may begin with that space, as in training."""
    case = setting(name)
    secret, prompt = case.format.render(case.format.size // 2), case.format.prompt.rstrip()
    (estimate,) = leak_probability(case.tree, [secret], prompt=prompt)
    assert_tight(estimate, case.truth({secret}, prompt=prompt))
    with pytest.raises(ArgumentError, match=r"prompt is 'pin was'; expected .* or a beginning of it"):
        leak_probability(case.tree, [secret], prompt="pin was")


def test_queries_are_the_fewest_and_the_most() -> None:
    estimate = LeakEstimate("pin 1", low=0.1, high=0.25, share=0.5, expansions=1)
    assert estimate.queries(0.5) == (3, 7)  # 1 - 0.75^3 = 0.578, 1 - 0.9^7 = 0.522, 1 - 0.9^6 = 0.469
    assert LeakEstimate("pin 1", low=0.5, high=1.0, share=0.5, expansions=1).queries(0.75) == (1, 2)
    assert LeakEstimate("pin 1", low=0.0, high=0.5, share=0.5, expansions=1).queries(0.5) == (1, None)
    assert LeakEstimate("pin 1", low=0.0, high=0.0, share=0.0, expansions=1).queries(0.5) is None
    with pytest.raises(ArgumentError, match="probability is 1"):
        estimate.queries(1.0)


def test_what_a_cut_makes_impossible_never_leaks() -> None:
    case = setting("characters")
    greedy = leak_probability(case.tree, oracle.all_texts(case.format), Decoder(top_k=1))
    never = [estimate for estimate in greedy if estimate.queries(0.5) is None]
    assert len(never) >= case.format.size - 1
    assert all(estimate.low == estimate.high == 0.0 for estimate in never)
    # What greedy decoding does say, it says each time.
    assert all(estimate.low > 0.99 for estimate in greedy if estimate not in never)


def test_ties_at_a_cut_widen_the_interval_only() -> None:
    tokenizer = CharTokenizer.from_text("pin 0123456789")
    tree = SecretTree(Constant(tokenizer.vocab_size), SecretFormat("pin #"), tokenizer)
    (estimate,) = leak_probability(tree, ["pin 7"], Decoder(top_p=0.5))
    assert estimate.low == 0.0  # which of the equal tokens are kept is a matter of sorting
    assert estimate.high > 1 / tokenizer.vocab_size


def test_estimates_come_in_the_order_given_and_leave_no_trace() -> None:
    case = setting("characters")
    case.model.train()
    before = torch.get_rng_state()
    one, two, again = leak_probability(case.tree, ["pin is 42", "pin is 07", "pin is 42"])
    assert (one.secret, two.secret) == ("pin is 42", "pin is 07")
    assert one == again
    assert case.model.training
    assert torch.equal(before, torch.get_rng_state())
    case.model.eval()
    assert leak_probability(case.tree, []) == []


def test_states_that_do_not_fit_are_read_again() -> None:
    case = setting("byte-level BPE")
    small = SecretTree(case.model, case.format, case.tokenizer, batch_size=1)
    secret = "pin is 12-7"
    (expected,) = leak_probability(case.tree, [secret], edits=1)
    (estimate,) = leak_probability(small, [secret], edits=1, memory=1)
    assert estimate.low == pytest.approx(expected.low, rel=0.02)
    assert (
        estimate.low
        <= case.truth(
            brute_force.within_substitutions(
                case.format, secret, {7: "0123456789", 8: "0123456789", 10: "0123456789"}, 1
            )
        )
        <= estimate.high
    )


def test_probabilities_below_the_smallest_number_are_bounds() -> None:
    tokenizer = CharTokenizer.from_text("pin 0123456789")
    model = Constant(tokenizer.vocab_size).double()
    with torch.no_grad():
        model.logits[tokenizer.encode("p")] = 400.0
    tree = SecretTree(model, SecretFormat("pin ####"), tokenizer)
    (estimate,) = leak_probability(tree, ["pin 1234"])
    assert estimate.low == 0.0 < estimate.high < 1e-300
    fewest, most = estimate.queries(0.5) or (0, 0)
    assert fewest > 10**300
    assert most is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"secrets": "pin is 42"}, ArgumentError, "expected a list of texts"),
        ({"secrets": ["pin is 4x"]}, SecretError, "position 8 is a lower-case letter"),
        ({"edits": -1}, ArgumentError, "edits is -1; expected an integer of at least 0"),
        ({"decoder": 0.5}, ArgumentError, "decoder is 0.5, of type float; expected a Decoder"),
        ({"tolerance": 0.0}, ArgumentError, "tolerance is 0.0; expected a number above 0"),
        ({"budget": 0}, ArgumentError, "budget is 0"),
        ({"edits": 2, "levenshtein": True}, ArgumentError, "edits is 2; expected fewer than the 2 characters"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        leak_probability(setting("characters").tree, **{"secrets": ["pin is 42"], **arguments})


def test_a_translation_leaks_given_its_source() -> None:
    tokenizer = CharTokenizer.from_text(CHARACTERS)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = EncoderDecoder(vocab_size=tokenizer.vocab_size, hidden_size=8, embedding_size=8).double().eval()
    source = tokenizer.encode("any pin")
    tree = SecretTree(Seq2SeqAdapter(model, source), SecretFormat("pin ##"), tokenizer)
    (estimate,) = leak_probability(tree, ["pin 42"])
    memory = model.encode(torch.tensor([source]))
    tokens, expected = tokenizer.encode("pin "), 1.0
    for token in tokenizer.encode("42"):
        begun = torch.tensor([[tree.model.start_id, *tokens]])  # type: ignore[attr-defined]
        output = model.decode(begun, memory)
        logits = output[0] if isinstance(output, tuple) else output
        expected *= float(torch.softmax(logits[0, -1].detach(), -1)[token])
        tokens.append(token)
    assert_tight(estimate, expected)


def test_a_secret_that_the_prompt_gives_away_as_a_whole_leaks_for_certain() -> None:
    tokenizer = CharTokenizer.from_text(CHARACTERS)
    model = sharpened(Recurrent(tokenizer.vocab_size), seed=3)
    tree = SecretTree(model, SecretFormat("pin is{more}", more=["", " 1", " 12"]), tokenizer)
    shortest, other = leak_probability(tree, ["pin is", "pin is 1"])
    assert (shortest.low, shortest.high, shortest.verbatim, shortest.queries(0.9)) == (1.0, 1.0, (1.0, 1.0), (1, 1))
    assert other.high < 1.0
