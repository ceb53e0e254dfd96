#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <unistd.h>

#include "core/base/file.hpp"
#include "pipeline/check_map.hpp"
#include "pipeline/command_line.hpp"
#include "pipeline/compare.hpp"
#include "pipeline/digest.hpp"
#include "pipeline/run.hpp"
#include "pipeline/verify_one.hpp"

namespace {

using namespace reshard;
namespace fs = std::filesystem;

constexpr std::uint64_t largest_job_bytes = 4U << 20;

std::atomic<bool> stop_requested = false;

extern "C" void request_stop(int) { stop_requested = true; }

/// Where maps lie: RESHARD_MAPS, then beside the installed program, then in the source tree it was built from.
std::vector<fs::path> map_folders() {
  std::vector<fs::path> folders;
  if (char const* own = std::getenv("RESHARD_MAPS"); own != nullptr && *own != '\0') folders.emplace_back(own);
  std::array<char, PATH_MAX> program{};
  ssize_t const length = ::readlink("/proc/self/exe", program.data(), program.size() - 1);
  if (length > 0) folders.push_back(fs::path(program.data()).parent_path().parent_path() / "share" / "reshard" / "models");
  folders.emplace_back(RESHARD_SOURCE_MAPS);
  return folders;
}

void print(std::FILE* stream, std::string const& text) { std::fwrite(text.data(), 1, text.size(), stream); }

void warn(std::vector<std::string> const& warnings) {
  for (std::string const& warning : warnings) print(stderr, "warning: " + warning + "\n");
}

JobSpec read_job(RunCommand const& command, Comm const& comm) {
  JobSpec job;
  std::string text;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    try {
      text = read_text_file(command.job_file, largest_job_bytes);
    } catch (Error const& error) {
      throw Error(ErrorKind::usage, error.sentence());
    }
  });
  text = comm.broadcast(std::move(text), 0);  // one reading: no rank can see another job
  together(comm, [&] { job = parse_job_spec(text, command.job_file, command.overrides); });
  return job;
}

void carry_out(RunCommand const& command, Comm const& comm) {
  JobSpec const job = read_job(command, comm);
  RunContext context{map_folders(), &stop_requested};
  if (command.trace_file) context.trace_file = *command.trace_file;
  RunReport const report = command.dry_run ? plan_only(job, context, comm) : run(job, context, comm);
  if (comm.rank() != 0) return;
  warn(report.warnings);
  print(stdout, command.json ? report_json(report).dump(2) + "\n" : report_text(report));
}

int carry_out(InspectCommand const& command, Comm const& comm) {
  if (comm.rank() != 0) return 0;
  Inspection const found = inspect(command.path, command.sizes);
  print(stdout, command.json ? found.json.dump(2) + "\n" : found.text);
  return found.sound ? 0 : exit_code(ErrorKind::source);
}

void carry_out(ListCommand const& command, Comm const& comm) {
  TensorList const list = list_tensors(command.path, command.listing, command.map, map_folders(), comm);
  if (comm.rank() == 0) print(stdout, command.json ? list.json.dump(2) + "\n" : list.text);
}

int carry_out(CheckMapCommand const& command, Comm const& comm) {
  if (comm.rank() != 0) return 0;
  MapReport const report = check_map_report(command.map, command.config, command.args, map_folders());
  print(stdout, command.json ? report.json.dump(2) + "\n" : report.text);
  if (report.error.empty()) return 0;
  print(stderr, "error: " + report.error + "\n");
  return exit_code(ErrorKind::usage);
}

/// What differs is no error, but a script must be able to ask.
constexpr int code_of_difference = 1;

void carry_out(DigestCommand const& command, Comm const& comm) {
  DigestQuery query;
  query.path = command.path;
  query.map = command.map;
  query.config = command.config;
  query.map_folders = map_folders();
  DigestReport const report = digest_report(query, comm);
  if (comm.rank() == 0) print(stdout, command.json ? report.json.dump(2) + "\n" : report.text);
}

int verify_alone(VerifyCommand const& command, Comm const& comm) {
  DigestQuery query;
  query.path = command.paths.front();
  query.map = command.map;
  query.config = command.config_a;
  query.scope = command.replicas ? DigestScope::all : DigestScope::distinct;
  query.map_folders = map_folders();
  VerifyReport const report = verify_one(std::move(query), comm);
  if (comm.rank() == 0) print(stdout, command.json ? report.json.dump(2) + "\n" : report.text);
  return report.sound ? 0 : code_of_difference;
}

int carry_out(VerifyCommand const& command, Comm const& comm) {
  if (command.paths.size() == 1) return verify_alone(command, comm);
  CompareRequest request;
  request.a = command.paths.front();
  request.b = command.paths.back();
  request.comparison = command.values ? Comparison::values : Comparison::bytes;
  request.map = command.map;
  request.config_a = command.config_a;
  request.config_b = command.config_b;
  request.row_limit = command.limit;
  request.map_folders = map_folders();
  CompareReport const report = compare_checkpoints(request, comm);
  if (comm.rank() == 0) print(stdout, command.json ? report.json.dump(2) + "\n" : report.text);
  return report.same ? 0 : code_of_difference;
}

int execute(Command const& command, Comm const& comm) {
  if (auto const* job = std::get_if<RunCommand>(&command)) carry_out(*job, comm);
  if (auto const* list = std::get_if<ListCommand>(&command)) carry_out(*list, comm);
  if (auto const* digest = std::get_if<DigestCommand>(&command)) carry_out(*digest, comm);
  if (auto const* verify = std::get_if<VerifyCommand>(&command)) return carry_out(*verify, comm);
  if (auto const* look = std::get_if<InspectCommand>(&command)) return carry_out(*look, comm);
  if (auto const* check = std::get_if<CheckMapCommand>(&command)) return carry_out(*check, comm);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit shall be an error of write, not the end
  Command const command = parse_command_line(argc, argv);
  if (auto const* text = std::get_if<PrintCommand>(&command)) {
    print(text->code == 0 ? stdout : stderr, text->text);
    return text->code;
  }
  if (std::holds_alternative<RunCommand>(command))
    for (int const signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) std::signal(signal, request_stop);
  int code = 0;
  int rank = 0;
  auto const error = capture([&] {
    MpiSession const session(&argc, &argv);
    Comm const comm = Comm::world();
    rank = comm.rank();
    auto const failed = capture([&] { code = execute(command, comm); });
    if (!failed) return;
    // Every rank has this error: the lowest one speaks.
    code = exit_code(failed->kind());
    if (rank == 0) print(stderr, "error: " + failed->sentence() + "\n");
  });
  if (!error) return code;
  print(stderr, "error: " + error->sentence() + "\n");
  return exit_code(error->kind());
}
