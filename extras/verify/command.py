"""Verify whether records, files and numbers on storage are what was measured, for `slipway verify`."""

from typing import Final

from base import errors, humanize
from workflow.commands.chosen_study import report_outputs, results_as_they_are
from workflow.commands.options import DEFAULT_STUDY, PlacesArgument, SiteOption, StudyOption
from workflow.commands.watching import output
from workflow.report.files import without_garbage_collection

MAX_SHOWN: Final = 200


@without_garbage_collection()
def main(
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
) -> None:
    """Check that the files on storage are what was measured: read every record and pushed file back, and compute the numbers again.

    It writes nothing and prints one line for each finding. It checks study.json, seals and numbers of records, size and BLAKE3 of
    every pushed file, the files of programs, and that the pushed events support an attempt that says ok.

    The command does not check what only the seal covers: commit, hosts, times and warnings. It also leaves out attempts that were set
    aside, the logs of supervisors, scheduler and Snakemake, and tables, plots and pages, which `slipway report` makes anew of the
    records. A seal is a hash, not a signature: whoever may write to the storage can make a wrong record with a right seal. `slipway
    dataset verify` checks datasets.

    Exit 19: something is wrong, or was not verified because of a storage that gave no byte for 120 s.
    """
    results = results_as_they_are(study, site, places or [])
    report_outputs()
    from extras.verify.runs import Verified, summary, verify_runs

    total = Verified()
    for directory in results:
        with output.progress(f"verify {directory.name}", "runs") as seen:
            total.add(verify_runs(directory, seen))
    for sentence in total.findings[:MAX_SHOWN]:
        output.line(sentence)
    if more := humanize.and_more(len(total.findings), MAX_SHOWN):
        output.line(more)
    said = summary(total, results)
    if not total.is_whole:
        raise errors.RecordError(said)
    output.line(said)
