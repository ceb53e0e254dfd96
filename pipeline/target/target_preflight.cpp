#include "pipeline/target/target_preflight.hpp"

#include <sys/stat.h>

#include "core/base/counted.hpp"
#include "core/base/text.hpp"
#include "core/formats/format.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/target/own_names.hpp"
#include "pipeline/target/strangers.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// What a tree takes on the disk.
std::uint64_t allocated_bytes(fs::path const& folder) {
  std::uint64_t bytes = 0;
  std::error_code ended;  // also when it is removed meanwhile
  for (fs::recursive_directory_iterator entry(folder, ended);
       !ended && entry != fs::recursive_directory_iterator(); entry.increment(ended)) {
    struct stat status {};
    if (::lstat(entry->path().c_str(), &status) == 0)
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

std::size_t count_of_iterations(fs::path const& root) {
  std::size_t count = 0;
  std::error_code ended;
  for (fs::directory_iterator it(root, ended); !ended && it != fs::directory_iterator();
       it.increment(ended)) {
    std::string const name = it->path().filename().string();
    std::error_code unknown;
    bool const is_step = matches_glob("iter_*", name) || name == "release" ||
                         (matches_glob("global_step*", name) && !name.ends_with("_universal"));
    if (is_step && it->is_directory(unknown)) ++count;
  }
  return count;
}

/// Beside what a conversion has written there may be something of which there is no other copy.
/// Where no record lists the checkpoint's files, they are known by their names.
void check_only_a_checkpoint(fs::path const& target, TargetDraft const& draft) {
  if (std::size_t const count = count_of_iterations(target); count > 1)
    fail(
        ErrorKind::target,
        "{}: holds {}, and target.replace = true removes no more than one checkpoint. Choose another target.path.",
        target.string(), counted(count, "iteration"));
  std::optional<Manifest> manifest;
  (void)capture([&] { manifest = find_manifest(target, ManifestScope::files); });
  std::set<std::string> const listed =
      manifest ? written_files(*manifest) : std::set<std::string>();
  bool const recorded = manifest && listed.size() > 1;
  std::set<std::string> const files = recorded ? listed : files_to_write(draft);
  Strangers const strangers = strangers_in(target, [&](std::string const& name, bool is_folder) {
    if (is_folder) return leads_to_one_of(files, name) || (!recorded && is_checkpoint_folder(name));
    return files.contains(name) || (!recorded && is_checkpoint_file(name));
  });
  if (strangers.count == 0) return;
  bool const one = strangers.count == 1;
  fail(ErrorKind::target,
       "{}: holds {}, which {} not part of the checkpoint there, and target.replace = true "
       "removes nothing else. Move {} away, or choose another target.path.",
       target.string(), text_of(strangers), one ? "is" : "are", one ? "it" : "them");
}

/// replace = true is no leave to remove what is not a checkpoint.
void check_replaceable(JobSpec const& spec, TargetDraft const& draft) {
  std::error_code ignored;
  fs::path const target = spec.target.path;
  if (!spec.target.replace || !fs::is_directory(target, ignored) || fs::is_empty(target, ignored))
    return;
  bool is_checkpoint = false;
  if (auto const unseen = capture([&] { is_checkpoint = !recognise(target).empty(); }))
    throw Error(ErrorKind::target, unseen->sentence());
  if (is_checkpoint) return check_only_a_checkpoint(target, draft);
  fail(ErrorKind::target,
       "{}: is neither empty nor a checkpoint, so target.replace = true does not remove it. Choose "
       "another target.path, or remove it yourself.",
       target.string());
}

void check_free_space(fs::path const& target, DiskSpace const& space) {
  std::uint64_t free = space.free_bytes;
  if (free >= space.needed_bytes) return;
  for (fs::path const& left : leftovers_of(target).staging)
    free += allocated_bytes(left);  // reused, or removed first
  if (free >= space.needed_bytes) return;
  fail(ErrorKind::resources,
       "{}: {} free, this run writes {}. Free {} or set target.path to another file system.",
       target.string(), human_bytes(free), human_bytes(space.needed_bytes),
       human_bytes(space.needed_bytes - free));
}

/// Names of this form are those of unfinished targets and of what goes with them.
void check_name(fs::path const& target) {
  std::string const name = absolute_target(target).filename().string();
  if (parse_hidden_name(name) ||
      (name.starts_with('.') && name.ends_with(".lock") && name.size() > 6))
    fail(ErrorKind::usage,
         "[target] path = {}: names such as .NAME.part-TOKEN and .NAME.lock are reserved for "
         "active runs. Choose another name.",
         json_quoted(target.string()));
}

}  // namespace

ExistingTarget existing_target(JobSpec const& spec) {
  return spec.target.replace ? ExistingTarget::replace : ExistingTarget::refuse;
}

void check_target(JobSpec const& spec, Checkpoint const& source, TargetDraft const& draft,
                  DiskSpace const& space) {
  check_name(spec.target.path);
  check_source_apart(spec, source);
  check_replaceable(spec, draft);
  check_free_space(spec.target.path, space);
}

}  // namespace reshard
