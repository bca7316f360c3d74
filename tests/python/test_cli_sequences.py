"""Recurrent models start for no more sequences than they have blocks for states."""

from cli_runner import answer_to, run

from kvplan.offline.cli.failures import DOES_NOT_FIT, FITS

#: The overhead is given, for what is predicted falls with the number of sequences.
HYBRID = ("plan", "qwen3.5-27b", "--gpu", "H100", "--weights", "54.7GB", "--overhead", "3GiB")


def test_more_sequences_than_blocks():
    result = run(*HYBRID)
    assert result.exit_code == DOES_NOT_FIT
    message = " ".join(result.stderr.split())
    assert "does not start for 1,024 sequences (max_num_seqs)" in message
    most = int(message.partition("Give --max-num-seqs ")[2].partition(" ")[0])
    assert answer_to(*HYBRID, "--max-num-seqs", str(most))["num_blocks"] == most
    assert run(*HYBRID, "--max-num-seqs", str(most + 1)).exit_code == DOES_NOT_FIT


def test_without_a_gpu_only_the_number_that_was_given_counts():
    memory = ("plan", "qwen3.5-27b", "--memory", "20GiB")
    assert run(*memory).exit_code == FITS
    assert run(*memory, "--max-num-seqs", "1024").exit_code == DOES_NOT_FIT


def test_models_without_states_start_for_any_number():
    arguments = ("plan", "llama-3.1-8b", "--memory", "1100MiB", "--max-model-len", "512")
    assert run(*arguments, "--max-num-seqs", "100000").exit_code == FITS
