#include "pipeline/publication/target_folders.hpp"

#include <utility>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/threads/workers.hpp"
#include "core/transport/gathered_texts.hpp"
#include "core/transport/in_turn.hpp"
#include "pipeline/journal/journal_folder.hpp"
#include "pipeline/publication/claim/strangers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

TargetTree tree_of(JobPlan const& plan, std::vector<std::string> const& small_files) {
  TargetTree tree{{small_files.begin(), small_files.end()}, {""}};
  tree.files.emplace(manifest_name);
  for (TargetFile const& file : plan.files) tree.files.insert(file.path.generic_string());
  for (std::string const& file : tree.files)
    for (fs::path folder = fs::path(file).parent_path(); !folder.empty();
         folder = folder.parent_path())
      tree.folders.insert(folder.generic_string());
  return tree;
}

[[noreturn]] void fail_listing(fs::path const& folder, std::error_code const& problem) {
  fail(ErrorKind::io, "{}: cannot be listed: {}. Check the file system, then run again.",
       folder.string(), problem.message());
}

[[noreturn]] void refuse_stranger(fs::path const& staging, std::string const& stranger) {
  fail(ErrorKind::self_check,
       "{}: holds {}, which this run did not write. Nothing was published: find out what writes "
       "there, then run again.",
       staging.string(), stranger);
}

/// Returns what lies in the folder, and in folders below it that no file of the target is in.
std::vector<fs::path> check_folder(TargetTree const& tree, fs::path const& staging,
                                   std::string const& name) {
  fs::path const folder = name.empty() ? staging : staging / name;
  std::error_code problem;
  std::vector<TreeEntry> const entries = listing_of(folder, problem);
  if (problem) fail_listing(folder, problem);
  std::vector<fs::path> paths;
  for (TreeEntry const& entry : entries) {
    paths.push_back(entry.path);
    std::string const path = entry.path.lexically_relative(staging).generic_string();
    if (entry.type == fs::file_type::directory) {
      if (tree.folders.contains(path)) continue;
      std::string const stranger = find_stranger(entry.path, {}, Folders::ignore, problem);
      if (problem) fail_listing(entry.path, problem);
      if (!stranger.empty()) refuse_stranger(staging, path + "/" + stranger);
      for (TreeEntry const& empty : reshard::tree_of(entry.path, problem))
        paths.push_back(empty.path);
      if (problem) fail_listing(entry.path, problem);
    } else if (!tree.files.contains(path)) {
      refuse_stranger(staging, path);
    }
  }
  return paths;
}

}  // namespace

TargetFolders::TargetFolders(TargetTask const& task, fs::path staging,
                             std::span<FileRecord const> small_files)
    : comm_(task.comm), staging_(std::move(staging)) {
  std::vector<std::string> names;
  for (FileRecord const& one : small_files) names.push_back(one.path);
  names = gathered_texts(names, comm_);
  together(comm_, [&] { tree_ = tree_of(task.plan, names); });
}

std::vector<std::string> TargetFolders::check() const {
  std::vector<std::string> lines;
  together(comm_, [&] {
    std::vector<std::string> const folders = mine();
    std::vector<std::vector<fs::path>> found(folders.size());
    overlapped(folders.size(),
               [&](std::size_t i) { found[i] = check_folder(tree_, staging_, folders[i]); });
    std::vector<fs::path> paths;
    for (std::vector<fs::path> const& some : found)
      paths.insert(paths.end(), some.begin(), some.end());
    lines = contents_lines(paths, staging_);
  });
  return gathered_texts(lines, comm_);
}

void TargetFolders::sync() const {
  together(comm_, [&] {
    std::vector<std::string> const folders = mine();
    overlapped(folders.size(), [&](std::size_t i) {
      sync_directory(folders[i].empty() ? staging_ : staging_ / folders[i]);
    });
  });
}

/// The folders of this rank.
std::vector<std::string> TargetFolders::mine() const {
  std::vector<std::string> const folders(tree_.folders.begin(), tree_.folders.end());
  std::vector<std::string> some;
  for_each_in_turn(comm_, folders.size(), [&](std::size_t f) { some.push_back(folders[f]); });
  return some;
}

}  // namespace reshard
