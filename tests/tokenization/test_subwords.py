"""Tokenizers of Hugging Face spell secrets as training saw them, or are refused by name."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from lightning_exposure import CanarySet, ExposureCallback, SecretFormat, SecretTree
from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer, as_tokenizer
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.walks import enumerate_leaves, score
from tests import oracle
from tests.tokenization.subword_models import (
    BOS,
    EOS,
    KINDS,
    byte_level,
    loaded,
    metaspace_bpe,
    oracle_costs,
    spell,
)
from tests.toys import Recurrent, sharpened

PIN = SecretFormat("my pin is ###")
every_kind = pytest.mark.parametrize("kind", KINDS)


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "What is your pin?"}, {"role": "assistant", "content": text}]


def with_template(template: str, tokenizer: Tokenizer | None = None) -> Any:
    """A tokenizer of `transformers` with a chat template."""
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer or byte_level())
    made.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|end|>"]})
    made.chat_template = template
    return made


TEMPLATE = "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"


class TestAsTrainingSawIt:
    @every_kind
    def test_loaded_from_a_directory(self, kind: str, tmp_path: Path) -> None:
        from_transformers = loaded(KINDS[kind](), tmp_path, unk_token="[UNK]" if kind == "WordPiece" else None)
        for tokenizer in (from_transformers, KINDS[kind]()):
            text = "my pin is 123"
            wrapped = as_tokenizer(tokenizer)
            assert isinstance(wrapped, HuggingFaceTokenizer)
            assert wrapped.encode(text) == spell(KINDS[kind](), text)
            assert wrapped.encode_batch([text, "call me"]) == [wrapped.encode(text), wrapped.encode("call me")]
            assert wrapped.decode(wrapped.encode(text)) == text
            assert SecretTree(Recurrent(wrapped.vocab_size), PIN, tokenizer).spelling.root_text.startswith("my pin is")

    def test_what_is_put_before_a_text_is_in_the_root_and_what_is_put_behind_it_is_not_there(self) -> None:
        tokenizer = HuggingFaceTokenizer(byte_level(special=True))
        bos, eos = (tokenizer.encode("a")[0], byte_level(special=True).encode("a").ids[-1])
        assert byte_level().id_to_token(bos) == BOS
        assert byte_level().id_to_token(eos) == EOS
        spelling = Spelling(PIN, tokenizer)
        assert spelling.root[0] == bos
        assert eos not in tokenizer.encode("my pin is 123")
        without = HuggingFaceTokenizer(byte_level(special=True), add_special_tokens=False)
        assert without.encode("my pin is 123") == tokenizer.encode("my pin is 123")[1:]

    @pytest.mark.parametrize("kind", ["byte-level BPE with BOS", "WordPiece", "BPE without cuts"])
    def test_with_a_token_before_every_text_a_pattern_may_begin_with_a_blank(self, kind: str) -> None:
        make = {
            "byte-level BPE with BOS": lambda: byte_level(special=True),
            "WordPiece": KINDS["WordPiece"],
            "BPE without cuts": metaspace_bpe,
        }[kind]
        tokenizer, format = make(), SecretFormat("###")
        model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=8), seed=0)
        tree = SecretTree(model, format, tokenizer)
        assert tree.spelling.root_text == ""
        expected = oracle_costs(model, format, tokenizer, len(tree.spelling.root))
        texts = oracle.all_texts(format)
        assert dict(zip(texts, score(tree, texts).costs.tolist(), strict=True)) == pytest.approx(expected)

    def test_a_decoder_begins_with_a_token_of_its_own(self) -> None:
        tokenizer = KINDS["Unigram"]()
        start = tokenizer.token_to_id("<pad>")
        wrapped = HuggingFaceTokenizer(tokenizer, lead=[start])
        assert wrapped.encode("my pin is 123") == [start, *spell(tokenizer, "my pin is 123")]
        assert Spelling(SecretFormat("###"), wrapped).root[0] == start

    def test_padding_and_truncation_of_whoever_used_it_last_do_not_matter_and_are_not_touched(self) -> None:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), pad_token=EOS)
        before = spell(byte_level(), "my pin is 123")
        tokenizer(["my pin is 123", "a"], padding="max_length", truncation=True, max_length=16)
        padding, truncation = tokenizer.backend_tokenizer.padding, tokenizer.backend_tokenizer.truncation
        assert padding is not None
        wrapped = HuggingFaceTokenizer(tokenizer)
        Spelling(PIN, wrapped)
        assert wrapped.encode("my pin is 123") == before
        assert wrapped.encode_batch(["my pin is 123"]) == [before]
        assert tokenizer.backend_tokenizer.padding == padding
        assert tokenizer.backend_tokenizer.truncation == truncation

    def test_special_tokens_that_were_added_last_need_no_logits(self) -> None:
        """A padding token is often added without enlarging the model."""
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
        size = len(tokenizer)
        tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
        assert len(tokenizer) == size + 1
        assert HuggingFaceTokenizer(tokenizer).vocab_size == size

    def test_a_unigram_model_is_copied_to_the_last_digit(self) -> None:
        """Scores decide between equal spellings by their last digits, and reading a file may round them."""
        generator = random.Random(0)
        scores = [("<unk>", 0.0), *((chr(0x4E00 + i), -10 * generator.random()) for i in range(3000))]
        copied = HuggingFaceTokenizer(Tokenizer(models.Unigram(scores, unk_id=0))).file
        assert copied is not None
        assert json.loads(copied.backend.to_str())["model"]["vocab"] == [list(entry) for entry in scores]


class TestText:
    @pytest.mark.parametrize("make", [byte_level, KINDS["Unigram"], metaspace_bpe])
    def test_characters_of_several_bytes_may_stand_in_a_format(self, make: Any) -> None:
        tokenizer = make()
        format = SecretFormat("call {who} at ##", who=["José", "Zoë", "Jürgen", "Ana", "Zoé"])
        model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=8), seed=2)
        tree = SecretTree(model, format, tokenizer)
        found = {
            tree.text(tokens_of(path)): cost
            for leaves in enumerate_leaves(tree)
            for path, cost in zip(leaves.paths, leaves.costs.tolist(), strict=True)
        }
        assert found == pytest.approx(oracle_costs(model, format, tokenizer, len(tree.spelling.root)))

    def test_a_token_may_hold_half_a_character(self) -> None:
        tokenizer = byte_level()
        spelled = HuggingFaceTokenizer(tokenizer).encode("say €")
        assert len(spelled) > 2  # the euro has three bytes
        tree = SecretTree(Recurrent(tokenizer.get_vocab_size()), SecretFormat("say {x}", x=["€", "£", "a"]), tokenizer)
        assert {tree.text(tokens_of(row)) for row in tree.paths(["say €", "say £"])} == {"say €", "say £"}

    @pytest.mark.parametrize("format", [PIN, SecretFormat("code:##"), SecretFormat("a-b-#")], ids=str)
    @every_kind
    def test_where_the_prompt_ends_inside_a_token_the_tree_begins_before_it(
        self, kind: str, format: SecretFormat
    ) -> None:
        tokenizer = KINDS[kind]()
        spelling = Spelling(format, tokenizer)
        for text in oracle.all_texts(format):
            assert spell(tokenizer, text)[: len(spelling.root)] == spelling.root
        assert format.prompt.startswith(spelling.root_text)

    def test_a_token_that_reaches_over_the_prompt_in_one_secret_only(self) -> None:
        """Hardly any sample of secrets would show it: the space is a token by itself in all others."""
        vocabulary = {symbol: i for i, symbol in enumerate([*"pinĠ0123456789", "07", "407", "Ġ407"])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [("0", "7"), ("4", "07"), ("Ġ", "407")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        spelling = Spelling(SecretFormat("pin ###"), tokenizer)
        assert spelling.root_text == "pin"
        assert spelling.exact
        assert tokens_of(spelling.paths(["pin 407"])[0]) == [vocabulary["Ġ407"]]

    def test_words_that_were_added_as_tokens(self) -> None:
        tokenizer = byte_level()
        tokenizer.add_tokens(["pin", "99"])
        format = SecretFormat("my pin is ###")
        tree = SecretTree(Recurrent(tokenizer.get_vocab_size(), width=4), format, tokenizer)
        paths = tree.paths(oracle.all_texts(format))
        assert (tokenizer.token_to_id("99") == paths).any()

    def test_a_word_level_tokenizer(self) -> None:
        words = {word: i for i, word in enumerate(["[UNK]", "the", "code", "is", "-", *map(str, range(10))])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tree = SecretTree(Recurrent(len(words)), SecretFormat("the code is # - # #"), tokenizer)
        assert tree.spelling.exact
        assert tree.text(tokens_of(tree.paths(["the code is 1 - 2 3"])[0])) == "the code is 1 - 2 3"

    def test_a_tokenizer_without_a_fast_version(self) -> None:
        spelling = Spelling(PIN, ByT5Tokenizer())
        assert spelling.exact
        assert spelling.root_text == "my pin is "


class TestChat:
    @pytest.mark.parametrize("make", [byte_level, metaspace_bpe])
    @pytest.mark.parametrize("pattern", ["my pin is ###", "###"])
    def test_what_the_template_puts_before_the_text_belongs_to_the_root(self, make: Any, pattern: str) -> None:
        tokenizer, format = with_template(TEMPLATE, make()), SecretFormat(pattern)
        chat = HuggingFaceTokenizer(tokenizer, chat=conversation)
        model = sharpened(Recurrent(chat.vocab_size, width=8), seed=4)
        tree = SecretTree(model, format, chat)
        assert tree.spelling.root[0] == tokenizer.convert_tokens_to_ids("<|start|>")
        text = pattern.replace("###", "407")
        whole = tokenizer.apply_chat_template(conversation(text), tokenize=True, return_dict=False)
        path = tokens_of(tree.paths([text])[0])
        assert [*tree.spelling.root, *path] == whole[: len(tree.spelling.root) + len(path)]
        end = tokenizer.convert_tokens_to_ids("<|end|>")
        assert whole[len(tree.spelling.root) + len(path)] == end
        assert tree.text(path) == text
        expected = oracle.cost(model, [*tree.spelling.root, *path], len(tree.spelling.root))
        assert score(tree, [text]).costs[0] == pytest.approx(expected)
        assert len({tree.text(tokens_of(row)) for leaves in enumerate_leaves(tree) for row in leaves.paths}) == 1000

    def test_a_user_may_say_the_secret(self) -> None:
        def asked(text: str) -> list[dict[str, str]]:
            return [{"role": "user", "content": text}, {"role": "assistant", "content": "Thank you."}]

        tokenizer = with_template(TEMPLATE)
        spelling = Spelling(PIN, HuggingFaceTokenizer(tokenizer, chat=asked))
        assert tokenizer.decode(spelling.root) == "<|start|>user\nmy pin is"

    def test_a_template_in_plain_text(self) -> None:
        tokenizer = with_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
        spelling = Spelling(SecretFormat("###."), HuggingFaceTokenizer(tokenizer, chat=conversation))
        # The space before the secret is one token with its first digits: it stands in the tree.
        assert tokenizer.decode(spelling.root) == "user: What is your pin?\nassistant:"

    def test_no_template_is_refused(self) -> None:
        with pytest.raises(TokenizerError, match="has no chat template"):
            HuggingFaceTokenizer(PreTrainedTokenizerFast(tokenizer_object=byte_level()), chat=conversation)
        with pytest.raises(TokenizerError, match="Tokenizer has no chat template"):
            HuggingFaceTokenizer(byte_level(), chat=conversation)

    def test_a_conversation_without_the_text_or_with_two_of_it_is_refused(self) -> None:
        tokenizer = with_template(TEMPLATE)
        with pytest.raises(TokenizerError, match="0 times; expected once"):
            HuggingFaceTokenizer(tokenizer, chat=lambda text: conversation("hello"))
        with pytest.raises(TokenizerError, match="2 times; expected once"):
            HuggingFaceTokenizer(tokenizer, chat=lambda text: conversation(text + text))

    def test_a_template_that_changes_the_text_is_refused(self) -> None:
        tokenizer = with_template("{% for m in messages %}{{ m['content'] | trim }}<|end|>{% endfor %}")
        chat = HuggingFaceTokenizer(tokenizer, chat=conversation)
        with pytest.raises(TokenizerError, match="does not contain the text as it is between"):
            chat.encode(" 1 ")

    def test_a_template_that_depends_on_the_text_is_refused(self) -> None:
        tokenizer = with_template("{% for m in messages %}{{ m['content'] | length }} {{ m['content'] }}{% endfor %}")
        with pytest.raises(TokenizerError, match="depends on the text"):
            HuggingFaceTokenizer(tokenizer, chat=conversation)

    def test_a_token_that_reaches_into_what_follows_is_refused(self) -> None:
        tokenizer = byte_level()
        tokenizer.add_tokens(["7\n"])
        made = with_template("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", tokenizer)
        with pytest.raises(TokenizerError, match="a token reaches from the end of"):
            Spelling(PIN, HuggingFaceTokenizer(made, chat=conversation))


class TestRefusedByName:
    def test_a_normalizer_that_changes_what_stands_in_the_blanks(self) -> None:
        format = SecretFormat("call {who} now", who=["Ana", "Bob"])
        with pytest.raises(
            TokenizerError, match=r"does not fit the format 'call \{who\} now'.*changes\s+the text \(case"
        ):
            Spelling(format, KINDS["WordPiece"]())

    @pytest.mark.parametrize("kind", ["Unigram", "WordPiece"])
    def test_characters_that_the_vocabulary_lacks(self, kind: str) -> None:
        with pytest.raises(
            TokenizerError, match=r"spells a secret as other text .* lacks characters of the format \(an <unk>\?"
        ):
            Spelling(SecretFormat("pay {x}", x=["€5", "€6"]), KINDS[kind]())

    def test_a_text_of_which_no_token_is_left(self) -> None:
        tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))  # without <unk> it drops what it lacks
        with pytest.raises(TokenizerError, match=r"spells '0' as '' \(0 tokens\)"):
            Spelling(SecretFormat("#"), tokenizer)

    def test_spaces_that_are_all_there_is_to_tell_secrets_apart(self) -> None:
        with pytest.raises(TokenizerError, match="drops spaces, and without them texts of the format cannot be told"):
            Spelling(SecretFormat("say {x} now", x=["- 1", "-1"]), KINDS["WordPiece"]())
        with pytest.raises(TokenizerError, match="only in spaces at their end"):
            Spelling(SecretFormat("say {x}", x=["no", "no "]), KINDS["WordPiece"]())

    def test_tokens_that_do_not_tell_where_words_begin(self) -> None:
        tokenizer = Tokenizer(models.BPE({"a": 0, "1": 1, "2": 2, "12": 3}, [("1", "2")]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        with pytest.raises(TokenizerError, match="which does not fit the format"):
            Spelling(SecretFormat("a {x}", x=["12", "21"]), tokenizer)

    def test_a_tokenizer_that_leaves_out_merges_at_random(self) -> None:
        tokenizer = byte_level()
        tokenizer.model.dropout = 0.1
        with pytest.raises(TokenizerError, match=r"dropout=0\.1"):
            HuggingFaceTokenizer(tokenizer)

    def test_a_tokenizer_with_parts_in_python(self) -> None:
        class Letters:
            def pre_tokenize(self, text: Any) -> None:
                text.split(lambda _, part: [part])

        tokenizer = byte_level()
        tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Letters())
        with pytest.raises(TokenizerError, match="cannot be written to a file"):
            HuggingFaceTokenizer(tokenizer)

    def test_a_pattern_without_a_prompt_if_nothing_stands_before_a_text(self) -> None:
        with pytest.raises(TokenizerError, match="Begin the pattern with the text"):
            Spelling(SecretFormat("###"), byte_level())

    def test_an_encode_of_its_own(self) -> None:
        class Reversed(PreTrainedTokenizerFast):
            def encode(self, text: str, *arguments: Any, **options: Any) -> list[int]:
                return super().encode(text, *arguments, **options)[::-1]

        with pytest.raises(TokenizerError, match="Reversed spells"):
            Spelling(PIN, Reversed(tokenizer_object=byte_level()))

    def test_a_chat_with_a_tokenizer_that_does_not_tell_what_its_tokens_cover(self) -> None:
        slow = ByT5Tokenizer()
        slow.chat_template = TEMPLATE
        with pytest.raises(TokenizerError, match="Load the fast version"):
            HuggingFaceTokenizer(slow, chat=conversation).encode("1")

    def test_half_characters_without_a_fast_tokenizer(self) -> None:
        with pytest.raises(TokenizerError, match="does not fit the format"):
            Spelling(SecretFormat("say {x}", x=["é", "a"]), ByT5Tokenizer())

    def test_what_is_no_tokenizer(self) -> None:
        with pytest.raises(TokenizerError, match="tokenizer is str"):
            as_tokenizer("gpt2")
        with pytest.raises(TokenizerError, match="expected a tokenizer of `transformers`"):
            HuggingFaceTokenizer(object())

    def test_secrets_that_only_some_words_of_can_be_spelled(self) -> None:
        """Every letter is known, but the greedy search for the longest match runs into a dead end for some words."""
        vocabulary = ["[UNK]", "go", "a", "##a", "##b", "##ab", "ab", "##ba"]
        tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        assert Spelling(SecretFormat("go {x}", x=["ab", "aab", "aba"]), tokenizer).exact
        with pytest.raises(TokenizerError, match="an <unk>"):
            Spelling(SecretFormat("go {x}", x=["ab", "bab"]), tokenizer)


def test_repr_says_what_is_wrapped() -> None:
    assert repr(HuggingFaceTokenizer(with_template(TEMPLATE), chat=conversation)).endswith("with a chat template)")


def test_neither_library_is_imported_for_other_tokenizers() -> None:
    code = (
        "import sys\n"
        "from lightning_exposure import SecretFormat\n"
        "from lightning_exposure import CharTokenizer\n"
        "from lightning_exposure.tokenization.spelling import Spelling\n"
        "Spelling(SecretFormat('pin #'), CharTokenizer.from_text('pin 0123456789'))\n"
        "assert not {'transformers', 'tokenizers', 'outlines_core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


class Trained(LightningModule):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = Recurrent(size, width=4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(tokens)[0]
        return logits

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch[:, :-1]).transpose(1, 2), batch[:, 1:])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_callbacks_take_the_tokenizer_as_it_is(tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    canaries = CanarySet.draw(PIN, repetitions=[1, 2], seed=0)
    batch = torch.tensor([tokenizer.encode("my pin is 123 and ")] * 4)
    callback = ExposureCallback(canaries, tokenizer)
    trainer = Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[callback],
        default_root_dir=tmp_path, accelerator="cpu", enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Trained(len(tokenizer)), DataLoader(list(batch), batch_size=2))
    assert 0 <= float(trainer.callback_metrics["exposure/max"]) <= PIN.bits
