#include "core/formats/megatron/headers/directory.hpp"

#include <gtest/gtest.h>

#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

void put_shard(std::filesystem::path const& iteration, std::string_view name,
               std::string_view file = model_file_name) {
  put_file(iteration / name / file);
}

std::vector<std::string> names_of(Directory const& directory) {
  std::vector<std::string> names;
  for (auto const& shard : directory.shards) names.push_back(shard.name);
  return names;
}

TEST(OpenDirectory, FollowsTheTracker) {
  for (std::string_view const text : {"100", "100\n", "  100 \r\n\n", "0000100"}) {
    TempDirectory const root;
    put_file(root.path() / tracker_name, text);
    put_shard(root.path() / "iter_0000100", "mp_rank_00");
    put_shard(root.path() / "iter_0000200", "mp_rank_00");
    auto const found = open_directory(root.path());
    EXPECT_EQ(found.root, root.path());
    EXPECT_EQ(found.iteration_dir, root.path() / "iter_0000100");
    EXPECT_EQ(found.iteration, 100);
    EXPECT_FALSE(found.release);
    EXPECT_TRUE(found.notes.empty());
    EXPECT_TRUE(looks_like_megatron(root.path()));
  }
}

TEST(OpenDirectory, FollowsATrackerToARelease) {
  TempDirectory const root;
  put_file(root.path() / tracker_name, "release\n");
  put_shard(root.path() / "release", "mp_rank_00");
  auto const found = open_directory(root.path());
  EXPECT_TRUE(found.release);
  EXPECT_EQ(found.iteration, 0);
  EXPECT_EQ(found.iteration_dir, root.path() / "release");
}

TEST(OpenDirectory, AcceptsIterationsOfAnyWidthAndLinks) {
  TempDirectory const root;
  put_file(root.path() / tracker_name, "12345678");
  put_shard(root.path() / "elsewhere", "mp_rank_00");
  std::filesystem::create_directory_symlink(root.path() / "elsewhere",
                                            root.path() / "iter_12345678");
  EXPECT_EQ(open_directory(root.path()).iteration, 12345678);

  TempDirectory const narrow;
  put_file(narrow.path() / tracker_name, "5");
  put_shard(narrow.path() / "iter_5", "mp_rank_00");
  EXPECT_EQ(open_directory(narrow.path()).iteration, 5);
}

TEST(OpenDirectory, TakesTheOnlyIterationWithoutTrackerAndSaysSo) {
  TempDirectory const root;
  put_shard(root.path() / "iter_0000007", "mp_rank_00");
  auto const found = open_directory(root.path());
  EXPECT_EQ(found.iteration, 7);
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_TRUE(contains(found.notes[0], "the only iteration is used: iter_0000007"));
}

TEST(OpenDirectory, TakesAnIterationDirectoryItself) {
  TempDirectory const root;
  put_file(root.path() / tracker_name, "8");
  put_shard(root.path() / "iter_0000007", "mp_rank_00");
  put_shard(root.path() / "release", "mp_rank_00");
  EXPECT_EQ(open_directory(root.path() / "iter_0000007").iteration, 7);
  EXPECT_EQ(open_directory(root.path() / "iter_0000007" / "").iteration, 7);
  EXPECT_EQ(open_directory(root.path() / "iter_0000007").root, root.path());
  EXPECT_TRUE(open_directory(root.path() / "release").release);
}

TEST(OpenDirectory, TakesADirectoryThatHoldsShards) {
  TempDirectory const root;
  put_shard(root.path() / "weights", "mp_rank_00_000");
  auto const found = open_directory(root.path() / "weights");
  EXPECT_EQ(found.iteration_dir, root.path() / "weights");
  EXPECT_EQ(found.root, root.path() / "weights");
  EXPECT_TRUE(looks_like_megatron(root.path() / "weights"));
  EXPECT_FALSE(looks_like_megatron(root.path()));
}

TEST(OpenDirectory, OrdersShardsByNumber) {
  TempDirectory const root;
  for (std::string_view const name : {"mp_rank_100", "mp_rank_99", "mp_rank_02", "mp_rank_10"})
    put_shard(root.path(), name);
  EXPECT_EQ(names_of(open_directory(root.path())),
            (std::vector<std::string>{"mp_rank_02", "mp_rank_10", "mp_rank_99", "mp_rank_100"}));
}

TEST(OpenDirectory, ListsFilesAndForeignEntries) {
  TempDirectory const root;
  put_shard(root.path(), "mp_rank_00");
  put_shard(root.path(), "mp_rank_00", "distrib_optim.pt");
  put_shard(root.path(), "mp_rank_01",
            "distrib_optim.pt");  // as many numbers as the other: it lost its weights
  put_shard(root.path(), "mp_rank_02", "model_rng.pt");
  put_file(root.path() / "progress.txt");
  put_file(root.path() / "mp_rank_00.pth");
  auto const found = open_directory(root.path());
  ASSERT_EQ(names_of(found), (std::vector<std::string>{"mp_rank_00", "mp_rank_01", "mp_rank_02"}));
  EXPECT_EQ(found.shards[0].files,
            (std::vector<std::string>{"distrib_optim.pt", "model_optim_rng.pt"}));
  EXPECT_EQ(found.shards[0].model_file, "model_optim_rng.pt");
  EXPECT_EQ(found.shards[1].model_file, "");
  EXPECT_EQ(found.shards[2].model_path(), root.path() / "mp_rank_02" / "model_rng.pt");
  EXPECT_EQ(found.foreign, (std::vector<std::string>{"mp_rank_00.pth", "progress.txt"}));
}

TEST(OpenDirectory, SetsDataParallelOptimizerDirectoriesApart) {
  TempDirectory const root;
  put_shard(root.path(), "mp_rank_00_000", "model_rng.pt");
  put_shard(root.path(), "mp_rank_00_000_000", "optim.pt");
  put_shard(root.path(), "mp_rank_00_000_001", "optim.pt");
  auto const found = open_directory(root.path());
  EXPECT_EQ(names_of(found), (std::vector<std::string>{"mp_rank_00_000"}));
  EXPECT_EQ(found.optimizer_only.size(), 2U);
  EXPECT_EQ(found.notes.size(), 1U);
}

struct Refusal {
  std::string_view what;
  std::vector<std::pair<std::string, std::string>> files;
  std::string_view sentence;
};

std::vector<Refusal> const refusals = {
    {"empty", {}, "found nothing"},
    {"two iterations, no tracker",
     {{"iter_0000001/mp_rank_00/x", ""}, {"iter_0000002/mp_rank_00/x", ""}},
     "holds 2 iterations and no latest_checkpointed_iteration.txt, which names one of them: "
     "iter_0000002 (mp_rank_00 has no model_optim_rng.pt), iter_0000001 (mp_rank_00 has no "
     "model_optim_rng.pt). Give one of them by its path"},
    {"tracker of words",
     {{"latest_checkpointed_iteration.txt", "latest\n"}},
     "expected an iteration number or the word \"release\", found \"latest\""},
    {"tracker with two numbers", {{"latest_checkpointed_iteration.txt", "1 2"}}, "found \"1 2\""},
    {"tracker below zero", {{"latest_checkpointed_iteration.txt", "-1"}}, "found \"-1\""},
    {"empty tracker", {{"latest_checkpointed_iteration.txt", " \n"}}, "found \"\""},
    {"tracker beyond 64 bits",
     {{"latest_checkpointed_iteration.txt", "99999999999999999999"}},
     "expected an iteration number"},
    {"tracker too long",
     {{"latest_checkpointed_iteration.txt", std::string(5000, ' ')}},
     "latest_checkpointed_iteration.txt"},
    {"iteration missing",
     {{"latest_checkpointed_iteration.txt", "3"}, {"iter_0000001/mp_rank_00/x", ""}},
     "names iter_0000003, but the iterations here are: iter_0000001"},
    {"no iteration at all",
     {{"latest_checkpointed_iteration.txt", "3"}},
     "the iterations here are: none"},
    {"ambiguous widths",
     {{"latest_checkpointed_iteration.txt", "3"},
      {"iter_3/mp_rank_00/x", ""},
      {"iter_03/mp_rank_00/x", ""}},
     "several folders have this number"},
    {"torch_dist iteration",
     {{"latest_checkpointed_iteration.txt", "3"},
      {"iter_0000003/.metadata", ""},
      {"iter_0000003/common.pt", ""}},
     "torch_dist"},
    {"torch_dist directory",
     {{"metadata.json", "{}"}, {"__0_0.distcp", ""}},
     "holds metadata.json of a distributed checkpoint"},
    {"DeepSpeed",
     {{"mp_rank_00_model_states.pt", ""}},
     "mp_rank_00_model_states.pt is a file of a DeepSpeed checkpoint"},
    {"DeepSpeed layers", {{"layer_01-model_00-model_states.pt", ""}}, "DeepSpeed"},
    {"DeepSpeed optimizer", {{"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", ""}}, "DeepSpeed"},
    {"optimizer only",
     {{"mp_rank_00_000/distrib_optim.pt", ""}, {"mp_rank_00_001/distrib_optim.pt", ""}},
     "Their last number is a data-parallel rank"},
    {"empty iteration",
     {{"latest_checkpointed_iteration.txt", "3"}, {"iter_0000003/progress.txt", ""}},
     "found progress.txt"},
};

TEST(OpenDirectory, SaysWhatItFoundInstead) {
  for (auto const& c : refusals) {
    SCOPED_TRACE(c.what);
    TempDirectory const root;
    for (auto const& [name, content] : c.files) put_file(root.path() / name, content);
    auto const sentence = sentence_of([&] { open_directory(root.path()); });
    EXPECT_TRUE(contains(sentence, c.sentence)) << sentence;
    EXPECT_TRUE(contains(sentence, root.path().string())) << sentence;
  }
}

TEST(OpenDirectory, RefusesFilesAndNothing) {
  TempDirectory const root;
  put_file(root.path() / "file");
  EXPECT_TRUE(contains(sentence_of([&] { open_directory(root.path() / "file"); }), "found a file"));
  EXPECT_TRUE(
      contains(sentence_of([&] { open_directory(root.path() / "absent"); }), "found nothing"));
  EXPECT_FALSE(looks_like_megatron(root.path() / "absent"));
  EXPECT_FALSE(looks_like_megatron(root.path() / "file"));
}

TEST(LooksLikeMegatron, DoesNotTakeTorchDistForIt) {
  TempDirectory const root;
  put_file(root.path() / tracker_name, "3");
  put_file(root.path() / "iter_0000003" / ".metadata");
  EXPECT_FALSE(looks_like_megatron(root.path()));
  TempDirectory const two;
  put_shard(two.path() / "iter_0000001", "mp_rank_00");
  put_shard(two.path() / "iter_0000002", "mp_rank_00");
  EXPECT_FALSE(looks_like_megatron(two.path()));
}

TEST(DirectoryNames, AreMegatrons) {
  EXPECT_EQ(iteration_directory_name(100), "iter_0000100");
  EXPECT_EQ(iteration_directory_name(123456789), "iter_123456789");
  EXPECT_EQ(tracker_text(100), "100");
}

}  // namespace
}  // namespace reshard::megatron
