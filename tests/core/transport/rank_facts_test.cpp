#include "core/transport/nccl/rank_facts.hpp"

#include <cstdlib>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/nccl/nccl_api.hpp"
#include "core/transport/nccl/nccl_library.hpp"
#include "core/transport/nccl/shared_library.hpp"

namespace reshard {
namespace {

/// Two hosts of two GPUs each, on which everything is as it should be.
std::vector<NcclRankFacts> good_ranks() {
  std::vector<NcclRankFacts> ranks;
  for (int r = 0; r < 4; ++r) {
    NcclRankFacts facts;
    facts.host = r < 2 ? "n01" : "n02";
    facts.host_identity = facts.host + "-boot";
    facts.device_id = "uuid" + std::to_string(r);
    facts.device_name = "NVIDIA H200, 139.8 GiB";
    facts.nccl_version = 22809;
    facts.driver_version = 13000;
    facts.runtime_version = 13000;
    ranks.push_back(facts);
  }
  return ranks;
}

/// One thing that is wrong, and what the sentence must name.
struct Fault {
  std::string name;
  std::function<void(std::vector<NcclRankFacts>&)> change;
  std::vector<std::string> named;
};

TEST(NcclProblem, NamesRanksHostsAndBothValues) {
  std::vector<Fault> const faults = {
      {"no driver",
       [](auto& all) { all[2].obstacle = all[3].obstacle = "no NVIDIA driver is installed"; },
       {"rank 2 on host n02", "no NVIDIA driver is installed", "2 of 4 ranks",
        "run.transport = \"mpi\""}},
      {"one GPU for two",
       [](auto& all) { all[3].device_id = "uuid2"; },
       {"ranks 2 and 3 on host n02", "uuid2", "NVIDIA H200", "as it has GPUs"}},
      {"NCCL versions",
       [](auto& all) { all[3].nccl_version = 22703; },
       {"rank 0 on host n01 has NCCL 2.28.9", "rank 3 on host n02 has 2.27.3"}},
      {"old NCCL",
       [](auto& all) {
         for (auto& one : all) one.nccl_version = 21803;
       },
       {"2.18.3", "2.19.1 or newer", "RESHARD_NCCL_LIBRARY"}},
      {"runtimes",
       [](auto& all) { all[1].runtime_version = 12080; },
       {"CUDA runtime 13.0", "rank 1 on host n01 has 12.8"}},
      {"drivers",
       [](auto& all) { all[2].driver_version = 12090; },
       {"a driver for CUDA 13.0", "rank 2 on host n02 has 12.9"}},
  };
  EXPECT_EQ(nccl_problem(good_ranks()), std::nullopt);
  for (Fault const& fault : faults) {
    auto ranks = good_ranks();
    fault.change(ranks);
    auto const problem = nccl_problem(ranks);
    ASSERT_TRUE(problem) << fault.name;
    for (std::string const& text : fault.named)
      EXPECT_NE(problem->find(text), std::string::npos)
          << fault.name << ": '" << text << "' in: " << *problem;
    EXPECT_EQ(problem->find(".."), std::string::npos) << *problem;
  }
}

TEST(NcclProblem, AMissingGpuIsNamedBeforeWhatFollowsFromIt) {
  auto ranks = good_ranks();
  for (std::size_t r : {0U, 1U}) {
    ranks[r] = {};
    ranks[r].obstacle = "no GPU is visible";
  }
  auto const problem = nccl_problem(ranks);
  ASSERT_TRUE(problem);
  EXPECT_NE(problem->find("no GPU is visible"), std::string::npos) << *problem;
}

TEST(NcclProblem, OneDeviceIdOnTwoHostsIsTwoDevices) {
  auto ranks = good_ranks();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].device_id = "the only GPU";
    ranks[r].host_identity = std::to_string(r);
  }
  EXPECT_EQ(nccl_problem(ranks), std::nullopt);
  ranks[3].host_identity = "0";
  EXPECT_NE(nccl_problem(ranks), std::nullopt);
}

TEST(NcclProblem, OneRankAloneHasNone) {
  std::vector<NcclRankFacts> const one = {good_ranks()[0]};
  EXPECT_EQ(nccl_problem(one), std::nullopt);
  EXPECT_EQ(nccl_problem({}), std::nullopt);
}

TEST(NcclRankFacts, ArriveAsTheyLeft) {
  NcclRankFacts facts = good_ranks()[1];
  EXPECT_EQ(unpack_facts(pack(facts)), facts);
  facts.host = "";
  facts.obstacle = "3:odd\n:text: 7:";
  facts.driver_version = -1;
  EXPECT_EQ(unpack_facts(pack(facts)), facts);
}

TEST(NcclHostIdentity, IsTheVariableOrHostNameAndBootId) {
  EXPECT_EQ(nccl_host_identity_of(nullptr, "n01", "1234-abcd"), "n011234-abcd");
  EXPECT_EQ(nccl_host_identity_of("rank3", "n01", "1234-abcd"), "rank3");
  EXPECT_EQ(nccl_host_identity_of("", "n01", "1234-abcd"), "")
      << "a variable that is set to nothing counts for NCCL";
  EXPECT_EQ(nccl_host_identity_of(nullptr, "n01", ""), "n01");
  EXPECT_EQ(nccl_host_identity_of(std::string(5000, 'x').c_str(), "n01", "").size(), 1023U);
}

TEST(NcclHostIdentity, FollowsTheEnvironmentOfThisProcess) {
  ::unsetenv("NCCL_HOSTID");
  std::string const here = nccl_host_identity();
  EXPECT_TRUE(here.starts_with(host_name()));
  EXPECT_EQ(nccl_host_identity(), here);
  ::setenv("NCCL_HOSTID", "elsewhere", 1);
  EXPECT_EQ(nccl_host_identity(), "elsewhere");
  ::unsetenv("NCCL_HOSTID");
}

TEST(NcclVersion, IsReadAsNcclWritesIt) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(21901), "2.19.1");
  EXPECT_EQ(nccl_version_text(2804), "2.8.4");
}

/// The sentence with which `work` fails.
std::string sentence_of(std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    return error.sentence();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SharedLibrary, AMissingOneIsNamedWithTheLoadersReasonAndTheAdvice) {
  std::string const sentence = sentence_of(
      [] { SharedLibrary const library("libnccl-that-is-not-there.so.2", "Look elsewhere."); });
  EXPECT_TRUE(sentence.starts_with("libnccl-that-is-not-there.so.2 cannot be opened: "))
      << sentence;
  EXPECT_NE(sentence.find("No such file"), std::string::npos) << sentence;
  EXPECT_TRUE(sentence.ends_with(" Look elsewhere.")) << sentence;
}

TEST(SharedLibrary, GivesFunctionsAndNamesMissingOnes) {
  SharedLibrary const library("libm.so.6", "");
  EXPECT_EQ(library.function<double(double)>("cos")(0), 1);
  std::string const sentence = sentence_of([&] { library.function<int()>("ncclGetVersion"); });
  EXPECT_NE(sentence.find("has no function ncclGetVersion"), std::string::npos) << sentence;
}

TEST(NcclLibrary, IsAskedForInVainWhereThereIsNone) {
  ::setenv("RESHARD_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  NcclOffer const offer = nccl_offer();
  EXPECT_EQ(offer.version, 0);
  std::string const sentence = sentence_of([] { open_nccl(); });
  if (offer.built) {
    EXPECT_TRUE(offer.why_none.starts_with("/nowhere/libnccl.so.2 cannot be opened: "))
        << offer.why_none;
    EXPECT_NE(sentence.find("RESHARD_NCCL_LIBRARY"), std::string::npos) << sentence;
  } else {
    EXPECT_EQ(offer.why_none, "this program was built without NCCL");
  }
  EXPECT_FALSE(offer.why_none.ends_with('.'));
  ::unsetenv("RESHARD_NCCL_LIBRARY");
}

}  // namespace
}  // namespace reshard
