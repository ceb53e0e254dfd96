// Links in checkpoints of every format: one inside the folder is followed, one that leaves it is
// refused, the folder itself may be reached by links.

#include <algorithm>

#include <gtest/gtest.h>

#include "core/containers/dcp/item_paths.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/hdf5/source.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// How a format finds its files, and the file in it that becomes a link. `content` is enough for
/// what opens it here.
struct LinkCase {
  char const* name;
  char const* file;
  std::string_view content;
  void (*open)(fs::path const&);
};

void open_dcp_files(fs::path const& path) {
  dcp::Metadata metadata;
  metadata.files = {"__0_0.distcp"};
  static_cast<void>(dcp::item_paths(dcp::open_directory(path), metadata));
}

LinkCase const link_cases[] = {
    {"huggingface", "model.safetensors", "x",
     [](fs::path const& path) { static_cast<void>(huggingface::open_folder(path)); }},
    {"boxed safetensors", "shard-0.safetensors", "x",
     [](fs::path const& path) { static_cast<void>(dcp::safetensors_files(path)); }},
    {"megatron", "mp_rank_00/model_optim_rng.pt", "x",
     [](fs::path const& path) { static_cast<void>(megatron::open_directory(path)); }},
    {"dcp items", "__0_0.distcp", "x", open_dcp_files},
    {"dcp metadata", ".metadata", "x", open_dcp_files},
    {"dcp common", "common.pt", "x", open_dcp_files},
    {"dcp backend", "metadata.json", R"({"sharded_backend": "torch_dist"})", open_dcp_files},
    {"hdf5", "model.h5", "x",
     [](fs::path const& path) { static_cast<void>(format_of(FormatId::hdf5).probe(path)); }},
};

class SourceLinks : public testing::TestWithParam<LinkCase> {
 protected:
  SourceLinks() {
    fs::create_directories(checkpoint_);
    fs::create_directories(outside_);
    if (std::string_view(GetParam().name).starts_with("dcp"))
      write_text_file(checkpoint_ / ".metadata", "x");
  }

  static void put(fs::path const& path) {
    fs::create_directories(path.parent_path());
    write_text_file(path, GetParam().content);
  }
  void link(fs::path const& target) const {
    fs::path const at = checkpoint_ / GetParam().file;
    fs::create_directories(at.parent_path());
    fs::remove(at);
    fs::create_symlink(target, at);
  }
  static std::string refusal(fs::path const& path) {
    try {
      GetParam().open(path);
    } catch (Error const& error) {
      return fmt::format("{}: {}", exit_code(error.kind()), error.sentence());
    }
    return "";
  }

  ScratchFolder scratch_{"source_links"};
  fs::path checkpoint_ = scratch_.path() / "checkpoint";
  fs::path outside_ = scratch_.path() / "outside";
};

TEST_P(SourceLinks, InsideTheFolderAreFollowed) {
  put(checkpoint_ / "kept" / "bytes");
  link(checkpoint_ / "kept" / "bytes");
  EXPECT_EQ(refusal(checkpoint_), "");
}

TEST_P(SourceLinks, ToASiblingAreRefusedWithTheirPath) {
  put(outside_ / "bytes");
  link(outside_ / "bytes");
  std::string const said = refusal(checkpoint_);
  EXPECT_EQ(said.find(fmt::format("3: {}: {} is a symbolic link that points outside the folder",
                                  checkpoint_.string(), GetParam().file)),
            0U)
      << said;
}

TEST_P(SourceLinks, OfACacheOfTheHubAreFollowed) {
  checkpoint_ = scratch_.path() / "repo" / "snapshots" / "0123abc";
  fs::create_directories(checkpoint_);
  if (std::string_view(GetParam().name).starts_with("dcp"))
    write_text_file(checkpoint_ / ".metadata", "x");
  put(scratch_.path() / "repo" / "blobs" / "f00d");
  link(scratch_.path() / "repo" / "blobs" / "f00d");
  EXPECT_EQ(refusal(checkpoint_), "");
}

TEST_P(SourceLinks, ToTheFolderItselfAreFine) {
  put(checkpoint_ / GetParam().file);
  fs::create_directory_symlink("checkpoint", scratch_.path() / "latest");
  EXPECT_EQ(refusal(scratch_.path() / "latest"), "");
  EXPECT_EQ(refusal(scratch_.path() / "latest/"), "");
}

INSTANTIATE_TEST_SUITE_P(Formats, SourceLinks, testing::ValuesIn(link_cases),
                         [](auto const& chosen) {
                           std::string name = chosen.param.name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

/// root/iter_0000007 is a link, as when old saves were moved to another file system.
TEST(SourceLinksOfIterations, AnIterationThatIsALinkIsRead) {
  ScratchFolder const scratch("iteration_links");
  fs::path const root = scratch.path() / "root";
  fs::path const archive = scratch.path() / "archive" / "iter_0000007";
  fs::create_directories(root);
  fs::create_directories(archive / "mp_rank_00");
  write_text_file(archive / "mp_rank_00" / "model_optim_rng.pt", "x");
  fs::create_directory_symlink(archive, root / "iter_0000007");
  write_text_file(root / "latest_checkpointed_iteration.txt", "7");
  EXPECT_EQ(megatron::open_directory(root).shards.size(), 1U);
  EXPECT_EQ(megatron::open_directory(root / "iter_0000007").shards.size(), 1U);

  // What an iteration shares with another one lies in the folder that the user named: only then it
  // is inside.
  fs::create_directories(root / "iter_0000008");
  fs::create_directories(root / "shared" / "mp_rank_00");
  write_text_file(root / "shared" / "mp_rank_00" / "model_optim_rng.pt", "x");
  fs::create_directory_symlink("../shared/mp_rank_00", root / "iter_0000008" / "mp_rank_00");
  write_text_file(root / "latest_checkpointed_iteration.txt", "8");
  EXPECT_EQ(megatron::open_directory(root).shards.size(), 1U);
  EXPECT_THROW(megatron::open_directory(root / "iter_0000008"), Error);
}

TEST(SourceLinksOfIterations, ATrackerThatIsALinkOutOfTheFolderIsNotRead) {
  ScratchFolder const scratch("tracker_links");
  fs::path const root = scratch.path() / "root";
  fs::create_directories(root / "iter_0000007" / "mp_rank_00");
  write_text_file(scratch.path() / "secret", "secret");
  fs::create_symlink("../secret", root / "latest_checkpointed_iteration.txt");
  for (auto const open :
       {+[](fs::path const& path) { static_cast<void>(megatron::open_directory(path)); },
        +[](fs::path const& path) { static_cast<void>(dcp::open_directory(path)); }}) {
    try {
      open(root);
      ADD_FAILURE() << "opened";
    } catch (Error const& error) {
      EXPECT_NE(error.sentence().find(
                    "latest_checkpointed_iteration.txt is a symbolic link that points outside the "
                    "folder"),
                std::string::npos)
          << error.sentence();
      EXPECT_EQ(error.sentence().find("\"secret\""), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace reshard
