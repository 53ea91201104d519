"""From questions to prompts: the instruction, the chat template, the tokens."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dapo_cli.config.schema import DataConfig, Instruction
from dapo_cli.data.questions import DataReport, Message, Question
from dapo_cli.errors import UserError
from dapo_cli.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The DAPO authors' text, as in their data files.
AUTHORS_INSTRUCTION = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{question}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
INSTRUCTION_MARK = "The last line of your response should be of the form Answer:"
TOKENIZER_BATCH = 1000


def make_prompts(
    questions: Sequence[Question], tokenizer: "PreTrainedTokenizerBase", config: DataConfig, report: DataReport
) -> list[Prompt]:
    """The prompts short enough, in the order of the questions; counts into `report`.

    Raises UserError for a tokenizer without the chat template that `data.chat_template` asks for, and where no prompt
    is left.
    """
    if config.chat_template and tokenizer.chat_template is None:
        raise UserError(
            "data.chat_template=true, but the model's tokenizer has no chat template: set data.chat_template=false, "
            "or use a model with one"
        )
    report.instruction_present = sum(has_instruction(question.messages) for question in questions)
    texts = [prompt_text(question, tokenizer, config) for question in questions]
    report.too_long = report.unknown_tokens = 0
    prompts = []
    shortest = None
    for question, text, token_ids in zip(
        questions, texts, _token_ids(texts, tokenizer, templated=config.chat_template), strict=True
    ):
        shortest = min(shortest or len(token_ids), len(token_ids))
        if len(token_ids) > config.max_prompt_tokens:
            report.too_long += 1
            continue
        report.unknown_tokens += tokenizer.unk_token_id in token_ids
        prompts.append(Prompt(question.uid, text, tuple(token_ids), question.answer, question.source))
    if not prompts:
        raise UserError(
            f"data.max_prompt_tokens={config.max_prompt_tokens}: all {len(texts)} prompts of {report.source} are "
            f"longer (the shortest has {shortest} tokens, template included); raise it"
        )
    return prompts


def prompts_record(prompts: Sequence[Prompt], report: DataReport) -> dict[str, Any]:
    """What a manifest says of the prompts that are used, and by which a change of them is told."""
    uids = "\n".join(prompt.uid for prompt in prompts)
    return {
        "prompts": len(prompts),
        "uids_sha256": hashlib.sha256(uids.encode()).hexdigest(),
        "fingerprints": [{"path": path, "sha256": sha256} for path, sha256 in report.fingerprints],
    }


def prompt_text(question: Question, tokenizer: "PreTrainedTokenizerBase", config: DataConfig) -> str:
    """What the model reads: the templated chat, or the bare text and a line end.

    Without template and instruction, the question "6+9-8=?" reads "6+9-8=?\\n". Raises UserError where the template
    refuses the messages.
    """
    messages = instructed(question, config)
    if not config.chat_template:
        return "\n\n".join(message.content for message in messages) + "\n"
    from jinja2 import TemplateError

    chat = [message._asdict() for message in messages]
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise UserError(
            f"{question.where}: the model's chat template refuses messages of the roles "
            f"{', '.join(message.role for message in messages)} ({error}): change them, or set data.chat_template=false"
        ) from error


def instructed(question: Question, config: DataConfig) -> tuple[Message, ...]:
    """The question's messages with the instruction of the section, which is not said twice."""
    messages = question.messages
    if config.instruction is Instruction.authors and not has_instruction(messages):
        messages = (*messages[:-1], Message("user", AUTHORS_INSTRUCTION.replace("{question}", messages[-1].content)))
    return messages


def has_instruction(messages: Sequence[Message]) -> bool:
    return any(INSTRUCTION_MARK in message.content for message in messages)


def _token_ids(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", *, templated: bool) -> Iterator[list[int]]:
    """A chat template writes its special tokens itself. A bare text gets those that the model was trained to see
    before a text (Llama's BOS), but no end of sequence, which some tokenizers add too: the prompt goes on."""
    for start in range(0, len(texts), TOKENIZER_BATCH):
        batch = list(texts[start : start + TOKENIZER_BATCH])
        # verbose=False: the tokenizer's own warning about long texts; they are counted here instead.
        for token_ids in tokenizer(batch, add_special_tokens=not templated, verbose=False)["input_ids"]:
            if not templated and token_ids[-1] == tokenizer.eos_token_id:
                token_ids = token_ids[:-1]
            yield token_ids
