// What was not done, or done twice, does not pass: every way in which rounds can fall short of the
// plan.

#include "pipeline/publication/work_account.hpp"

#include <gtest/gtest.h>

#include "core/plan/cells/schedule.hpp"
#include "pipeline/journal/journal_entries.hpp"
#include "tests/support/plan_world.hpp"

namespace reshard {
namespace {

/// A conversion of a small model, with a plan of several cells.
struct Case {
  Comm comm = Comm::world();
  JobPlan plan;

  explicit Case(bool digests = true) {
    test::SampleModel const sample = test::sample_models().front();
    MapFile const core = test::map_file("mcore");
    MapFile const family = test::map_file(sample.family);
    plan.model = std::make_unique<Model>(family, core, ModelFacts{sample.config, "config.json", 0});
    Model& model = *plan.model;
    apply_family(model, Side(model, family, {}));
    auto const meshes = test::sample_meshes(false);
    auto const world = [&](test::SampleMesh const& at) {
      Side const side(
          model, core,
          {true, at.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "[target] layout"});
      return test::make_world(model, side, at, DType::bf16);
    };
    plan.source = world(meshes.front()).catalog;
    plan.target = world(meshes.back()).catalog;
    plan.plan = make_plan(model, plan.source, plan.target, {2048, 32768, digests});
    plan.files.resize(plan.target.files.size());
  }

  std::vector<RoundWork> rounds() const {
    std::vector<RoundWork> all;
    auto next = direct_rounds(plan.plan, cells_of_rank(plan.plan, comm.rank(), comm.size()), 8192);
    while (auto round = next()) all.push_back(*std::move(round));
    return all;
  }
};

/// What a stream says of a round, and its writes as the sink has them.
JournalEntry carry_out(WorkAccount& account, RoundWork const& round) {
  std::vector<DigestShare> digests;
  for (DigestPart const& part : round.digests) digests.push_back({part.digest, 1, bytes_of(part)});
  for (Extent const& write : round.writes) account.add_written(write.file, write.bytes);
  return account.add({0, round.cells, digests, {}, round.writes});
}

/// The sentence in which it ends; "" when all was done.
std::string verdict(WorkAccount& account, Case const& one) {
  account.gather(one.comm);
  auto const error = capture([&] { account.expect_whole(one.plan); });
  if (!error) return "";
  EXPECT_EQ(error->kind(), ErrorKind::self_check);
  return error->sentence();
}

/// Every rank carries out its rounds; `change` spoils them on rank 0.
template <class Change>
std::string verdict_after(Change const& change, bool digests = true) {
  Case const one(digests);
  WorkAccount account(one.plan, 0);
  std::vector<RoundWork> rounds = one.rounds();
  if (one.comm.rank() == 0) change(rounds);
  for (RoundWork const& round : rounds) carry_out(account, round);
  return verdict(account, one);
}

bool says(std::string const& sentence, std::string_view part) {
  return sentence.find(part) != std::string::npos;
}

TEST(WorkAccount, AllRoundsArePlan) {
  for (bool const digests : {true, false}) EXPECT_EQ(verdict_after([](auto&) {}, digests), "");
}

TEST(WorkAccount, ACellThatNoRankTakesIsNamed) {
  for (bool const digests : {true, false}) {
    std::string const said = verdict_after(
        [](std::vector<RoundWork>& rounds) {
          ASSERT_GT(rounds.size(), 2U);
          rounds.erase(rounds.begin() + 1);
        },
        digests);
    EXPECT_TRUE(says(said, "step ") && says(said, "done by no rank")) << said;
    EXPECT_TRUE(says(said, digests ? " of '" : " of the tensor at byte ")) << said;
  }
}

TEST(WorkAccount, TheLastRoundCannotBeMissing) {
  Case const one;
  WorkAccount account(one.plan, 0);
  std::vector<RoundWork> rounds = one.rounds();
  if (one.comm.rank() + 1 == one.comm.size()) rounds.pop_back();
  for (RoundWork const& round : rounds) carry_out(account, round);
  EXPECT_TRUE(says(verdict(account, one), "done by no rank"));
}

TEST(WorkAccount, ACellThatIsDoneTwiceIsNamed) {
  std::string const said =
      verdict_after([](std::vector<RoundWork>& rounds) { rounds.push_back(rounds.front()); });
  EXPECT_TRUE(says(said, "step 0 of ") && says(said, "done twice")) << said;
}

TEST(WorkAccount, ACellLeftOutThatAnotherDoneTwiceMakesUpForIsSeen) {
  std::string const said =
      verdict_after([](std::vector<RoundWork>& rounds) { rounds[1] = rounds[0]; });
  EXPECT_TRUE(says(said, "done twice") || says(said, "by no rank")) << said;
}

TEST(WorkAccount, ARoundThatReadsAndDoesNotWriteIsSeen) {
  std::string const said =
      verdict_after([](std::vector<RoundWork>& rounds) { rounds[1].writes.clear(); });
  EXPECT_TRUE(says(said, "bytes of tensors were written to it")) << said;
  EXPECT_TRUE(says(said, "file")) << said;
}

TEST(WorkAccount, BytesThatNoDigestIsTakenOfAreSeen) {
  std::string const said =
      verdict_after([](std::vector<RoundWork>& rounds) { rounds[1].digests.pop_back(); });
  EXPECT_TRUE(says(said, "bytes of it were read, it has")) << said;
}

/// Half of the rounds were done by an earlier run, whose journal `change` spoils.
template <class Change>
std::string verdict_of_resumed(Change const& change) {
  Case one;
  if (one.comm.size() > 1) return "";
  WorkAccount account(one.plan, 0);
  std::vector<JournalEntry> entries;
  {
    WorkAccount before(one.plan, 0);
    std::vector<RoundWork> const rounds = one.rounds();
    for (std::size_t r = 0; r < rounds.size() / 2; ++r)
      entries.push_back(carry_out(before, rounds[r]));
  }
  change(entries);
  JournalEntry const done = joined(entries);
  account.add_earlier(done);
  drop_cells(one.plan.plan, done.cells);
  for (RoundWork const& round : one.rounds()) carry_out(account, round);
  return verdict(account, one);
}

TEST(WorkAccount, EarlierRunsCount) {
  EXPECT_EQ(verdict_of_resumed([](auto&) {}), "");
  EXPECT_EQ(verdict_of_resumed([](auto& entries) { entries.clear(); }), "");
}

TEST(WorkAccount, AnEntryThatOnlyClaimsItsCellsIsSeen) {
  if (Comm::world().size() > 1) GTEST_SKIP() << "journals are read on one rank";
  std::string const said = verdict_of_resumed([](std::vector<JournalEntry>& entries) {
    JournalEntry forged;
    forged.cells = entries.front().cells;
    entries = {forged};
  });
  EXPECT_TRUE(says(said, "bytes of it were read, it has")) << said;
}

TEST(WorkAccount, AnEntryOfCellsThatThePlanLacksIsSeen) {
  if (Comm::world().size() > 1) GTEST_SKIP() << "journals are read on one rank";
  std::string const said = verdict_of_resumed([](std::vector<JournalEntry>& entries) {
    JournalEntry forged;
    forged.cells = {{1U << 30U, (1U << 30U) + 3}};
    forged.digested = {{1U << 30U, 5}};
    entries.push_back(forged);
  });
  EXPECT_TRUE(says(said, "earlier runs recorded")) << said;
}

TEST(WorkAccount, SumsOfRecordsAreThoseOfAllRanks) {
  Case const one;
  WorkAccount account(one.plan, 3);
  auto const rank = static_cast<std::uint32_t>(one.comm.rank());
  std::vector<RecordShare> const shares{{1, 1U << rank, 10}, {1, 0, 5}, {2, 7, UINT64_MAX}};
  JournalEntry const entry = account.add({0, {}, {}, shares, {}});
  EXPECT_EQ(entry.sources, (std::vector<SumShare>{{1, 1U << rank}, {2, 7}}));
  EXPECT_EQ(entry.covered, (std::vector<SumShare>{{1, 15}, {2, UINT64_MAX}}));
  account.gather(one.comm);
  auto const ranks = static_cast<std::uint64_t>(one.comm.size());
  EXPECT_EQ(account.record_crc32()[1], (1U << ranks) - 1);
  EXPECT_EQ(account.record_crc32()[2], ranks % 2 == 1 ? 7U : 0U);
  EXPECT_EQ(account.record_covered()[1], 15 * ranks);
  EXPECT_EQ(account.record_covered()[2], UINT64_MAX * ranks);
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
