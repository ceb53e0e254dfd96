#include "pipeline/run/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/base/hash/xxh3.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_shown = 300;

std::string digest_of(std::span<SharedFact const> facts) {
  std::string all;
  for (SharedFact const& fact : facts) all += fmt::format("{} {}", fact.value.size(), fact.value);
  return xxh3_128(all);
}

/// Where two strings first differ, with the text there: a long command line would hide it.
std::pair<std::string, std::string> parting(std::string_view one, std::string_view other) {
  std::size_t const begin =
      static_cast<std::size_t>(std::ranges::mismatch(one, other).in1 - one.begin());
  std::size_t const from = begin > most_shown / 2 ? begin - most_shown / 2 : 0;
  auto const shown = [&](std::string_view text) {
    std::string const part(text.substr(std::min(from, text.size()), most_shown));
    return part.empty() && from == 0 ? std::string("nothing")
                                     : json_quoted((from > 0 ? "…" : "") + part);
  };
  return {shown(one), shown(other)};
}

[[noreturn]] void refuse(SharedFact const& fact, int rank, std::string_view other) {
  auto const [here, there] = parting(fact.value, other);
  fail(fact.kind, "{} is not the same on all ranks: {} on rank 0, {} on rank {}. {}", fact.name,
       here, there, rank, fact.advice);
}

}  // namespace

void check_same(Comm const& comm, std::span<SharedFact const> facts) {
  if (comm.size() == 1) return;
  std::string const mine = digest_of(facts);
  std::vector<std::string> const digests = comm.all_gather(mine);
  auto const other = std::ranges::find_if(
      digests, [&](std::string const& digest) { return digest != digests.front(); });
  if (other == digests.end()) return;
  auto const rank = static_cast<int>(other - digests.begin());
  std::vector<std::string> theirs;
  for (SharedFact const& fact : facts)
    theirs.push_back(comm.broadcast(comm.rank() == rank ? fact.value : std::string(), rank));
  together(comm, [&] {
    if (comm.rank() != 0) return;
    for (std::size_t i = 0; i < facts.size(); ++i)
      if (facts[i].value != theirs[i]) refuse(facts[i], rank, theirs[i]);
    RESHARD_EXPECT(false);
  });
}

void check_same_start(Comm const& comm, std::vector<std::string> const& words) {
  if (comm.size() == 1) return;
  char const* const maps = std::getenv("RESHARD_MAPS");
  std::string command;
  for (std::string const& word : words) command += (command.empty() ? "" : " ") + word;
  std::array<SharedFact, 3> const facts = {
      SharedFact{"the program", program_digest(), ErrorKind::usage,
                 "Install the same build of reshard on every node."},
      SharedFact{"the command", command, ErrorKind::usage,
                 "Start every rank with the same command."},
      SharedFact{
          "RESHARD_MAPS", maps == nullptr ? "" : maps, ErrorKind::usage,
          "Set it to the same folder for every rank (mpirun -x RESHARD_MAPS, srun --export=ALL)."}};
  check_same(comm, facts);
}

void check_same_folder(Comm const& comm, JobSpec const& job) {
  std::array<std::string const*, 4> const paths = {&job.source.path, &job.source.config,
                                                   &job.target.path,
                                                   &job.target.options.huggingface.reference};
  bool const any = std::ranges::any_of(paths, [](std::string const* path) {
    return !path->empty() && !std::filesystem::path(*path).is_absolute();
  });
  if (!any) return;
  std::error_code unknown;
  std::array<SharedFact, 1> const facts = {
      SharedFact{"the current folder, from which relative paths of the job count,",
                 std::filesystem::current_path(unknown).string(), ErrorKind::usage,
                 "Start all ranks in the same folder, or write absolute paths."}};
  check_same(comm, facts);
}

void check_same_identity(Comm const& comm, JobIdentity const& identity) {
  std::array<SharedFact, 4> const facts = {
      SharedFact{"the program", identity.program, ErrorKind::usage,
                 "Install the same build of reshard on every node."},
      SharedFact{"the job", identity.job_text, ErrorKind::usage,
                 "Start every rank with the same job file and options, in the same folder."},
      SharedFact{"the source", identity.source, ErrorKind::source,
                 "Put it on a file system that all nodes share, then run again."},
      SharedFact{
          "the plan", identity.plan, ErrorKind::self_check,
          "Nothing was written. The job is the same, so look for hardware errors; else this is a bug of reshard: please report it with the "
          "job file."}};
  check_same(comm, facts);
}

}  // namespace reshard
