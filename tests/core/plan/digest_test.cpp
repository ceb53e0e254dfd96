// Digests of logical tensors as plans take them, against the CRC of every element in its logical
// order.

#include <gtest/gtest.h>

#include <cstring>

#include "core/base/hash/crc64.hpp"
#include "core/device/strided_digest.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/ordered_blocks.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/plan_world.hpp"

namespace reshard {
namespace {

using test::SampleMesh;
using test::SampleModel;
using test::World;
using Digests = std::vector<std::uint64_t>;

/// A model with both of its sides' maps.
struct Fixture {
  MapFile core = test::map_file("mcore");
  MapFile family;
  Model model;
  Fixture(SampleModel const& sample)
      : family(test::map_file(sample.family)),
        model(family, core, {sample.config, "config.json", 0}) {
    apply_family(model, Side(model, family, {}));
  }
  Side local(SampleMesh const& at) const {
    return Side(model, core,
                {true, at.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "[target] layout"});
  }
};

/// The elements of a tensor one after the other, the last axis fastest.
std::vector<std::byte> logical_bytes(Model const& model, TensorId t, std::size_t element) {
  LogicalTensor const& tensor = model.tensor(t);
  std::vector<std::vector<Index>> indices;
  for (DomainAxis const& axis : model.domain(tensor)) {
    indices.emplace_back();
    for (Run const& run : axis.runs)
      for (Index i = run.begin; i < run.end; ++i) indices.back().push_back(i * axis.div);
  }
  std::vector<std::byte> bytes;
  std::vector<std::size_t> at(indices.size(), 0);
  for (;;) {
    std::vector<std::pair<AxisId, Index>> coordinates;
    for (std::size_t d = 0; d < at.size(); ++d)
      coordinates.emplace_back(tensor.axes[d].axis, indices[d][at[d]]);
    std::uint32_t const value = test::element_value(t, coordinates);
    auto const* const first = reinterpret_cast<std::byte const*>(&value);
    bytes.insert(bytes.end(), first, first + element);
    std::size_t d = at.size();
    while (d > 0 && ++at[d - 1] == indices[d - 1].size()) at[--d] = 0;
    if (d == 0) return bytes;
  }
}

Digests expected_digests(Model const& model, std::size_t element) {
  Digests digests(model.tensors().size(), 0);
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (!model.exists(TensorId(t)) || model.volume(model.tensors()[t]) == 0) continue;
    digests[t] = crc64_by_tables(logical_bytes(model, TensorId(t), element));
  }
  return digests;
}

void add(Digests& sums, RoundWork const& round, test::Files const& files) {
  std::vector<std::byte> staging(round.staging_bytes, std::byte{0xee});
  for (Extent const& read : round.reads)
    std::memcpy(staging.data() + read.at, files.at(read.file).data() + read.offset_bytes,
                read.bytes);
  for (DigestPart const& part : round.digests)
    sums[index(part.digest)] ^=
        strided_digest(staging.data() + part.from, part.run_bytes, part.dims,
                       part.tensor_bytes - part.at - part.run_bytes);
}

Digests direct_digests(Plan const& plan, World const& source, int ranks,
                       std::uint64_t staging_bytes) {
  Digests sums(plan.tensor_bytes.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    auto next = direct_rounds(plan, cells_of_rank(plan, rank, ranks), staging_bytes);
    while (auto const round = next()) add(sums, *round, source.files);
  }
  return sums;
}

Digests exchanged_digests(Plan const& plan, World const& source, int ranks,
                          std::uint64_t staging_bytes) {
  Digests sums(plan.tensor_bytes.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    ExchangeRounds rounds(plan, balanced_readers(plan, source.files.size(), ranks), rank, ranks,
                          4 * staging_bytes);
    while (auto const round = rounds.next()) add(sums, *round, source.files);
  }
  return sums;
}

/// The share of every piece, straight from the files.
Digests piece_shares(DigestWork const& work, test::Files const& files) {
  Digests shares(work.shares.size(), 0);
  for (ShareRegion const& region : work.regions) {
    auto const dims = std::span(work.dims).subspan(region.first_dim, region.dim_count);
    std::uint64_t const whole = work.tensor_bytes[index(work.share(region.to).digest)];
    shares[index(region.to)] ^=
        strided_digest(files[region.src_file].data() + region.src_offset_bytes, region.run_bytes,
                       dims, whole - region.dst_offset_bytes - region.run_bytes);
  }
  return shares;
}

void expect_shares(DigestWork const& work, test::Files const& files, Digests const& expected) {
  Digests const shares = piece_shares(work, files);
  Digests sums(expected.size(), 0);
  for (std::size_t s = 0; s < work.shares.size(); ++s) {
    EXPECT_EQ(shares[s], shares[index(work.shares[s].same_as)]);
    if (work.shares[s].same_as == ShareId(s)) sums[index(work.shares[s].digest)] ^= shares[s];
  }
  EXPECT_EQ(sums, expected);
}

/// Where the writes of a round end, which begin at `begin` and follow each other.
std::uint64_t end_of(RoundWork const& round, std::uint64_t begin) {
  std::vector<Extent> writes = round.writes;
  std::ranges::sort(writes, {}, &Extent::offset_bytes);
  for (Extent const& write : writes) {
    EXPECT_EQ(write.file, 7U);
    EXPECT_EQ(write.offset_bytes, begin);
    begin += write.bytes;
  }
  return begin;
}

/// With so little memory that tensors come in many blocks, whose ends lie anywhere in their rows.
TEST(Digest, OrderedBlocksAreTheLogicalBytes) {
  for (SampleModel const& sample : test::sample_models()) {
    Fixture const fixture(sample);
    auto const meshes = test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    for (std::size_t i = 0; i < meshes.size(); i += 3) {
      SCOPED_TRACE(fmt::format("{} {}", sample.family, i));
      World const source =
          test::make_world(fixture.model, fixture.local(meshes[i]), meshes[i], DType::bf16);
      std::size_t blocks_in_all = 0;
      for (std::size_t t = 0; t < fixture.model.tensors().size(); ++t) {
        auto const id = TensorId(t);
        if (!fixture.model.exists(id) || fixture.model.volume(fixture.model.tensor(id)) == 0)
          continue;
        OrderedBlocks blocks(fixture.model, source.catalog, id);
        std::uint64_t const memory = 1500 + 1000 * (t % 7);
        test::Files written(8);
        written[7].resize(blocks.bytes());
        std::uint64_t end = 0;
        while (!blocks.done()) {
          RoundWork const round = blocks.next(7, memory);
          ASSERT_LE(round.staging_bytes, memory);
          std::vector<std::byte> staging(round.staging_bytes, std::byte{0xee});
          test::carry_out(round, staging, source.files, written);
          end = end_of(round, end);
          ++blocks_in_all;
        }
        EXPECT_EQ(end, blocks.bytes());
        EXPECT_EQ(written[7], logical_bytes(fixture.model, id, 2))
            << fixture.model.tensor(id).name.text();
      }
      EXPECT_GT(blocks_in_all, 2 * fixture.model.tensors().size());
    }
  }
}

TEST(Digest, OfEveryLayoutIsTheCrcOfTheLogicalBytes) {
  PlanLimits const limits{2048, 32768};
  for (SampleModel const& sample : test::sample_models()) {
    Fixture const fixture(sample);
    auto const meshes = test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    Digests const expected = expected_digests(fixture.model, 2);
    std::size_t replicas = 0;
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} {}", sample.family, i));
      SampleMesh const& to = meshes[(i * 5 + 3) % meshes.size()];
      World const source =
          test::make_world(fixture.model, fixture.local(meshes[i]), meshes[i], DType::bf16);
      World const target = test::make_world(fixture.model, fixture.local(to), to, DType::bf16);
      Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, limits);
      EXPECT_EQ(direct_digests(plan, source, static_cast<int>(1 + i % 3), limits.staging_bytes),
                expected);
      EXPECT_EQ(exchanged_digests(plan, source, static_cast<int>(2 + i % 4), limits.staging_bytes),
                expected);
      expect_shares(digest_work(fixture.model, source.catalog, DigestScope::distinct), source.files,
                    expected);
      DigestWork const all = digest_work(fixture.model, source.catalog, DigestScope::all);
      expect_shares(all, source.files, expected);
      for (std::size_t s = 0; s < all.shares.size(); ++s)
        replicas += all.shares[s].same_as != ShareId(s);
    }
    EXPECT_GT(replicas, 0U);
  }
}

TEST(Digest, AnyBitChangesIt) {
  Fixture const fixture(test::sample_models().front());
  SampleMesh const at = test::sample_meshes(false).back();
  World world = test::make_world(fixture.model, fixture.local(at), at, DType::f32);
  DigestWork const work = digest_work(fixture.model, world.catalog, DigestScope::all);
  Digests const before = piece_shares(work, world.files);
  for (std::size_t i = 0; i < work.regions.size(); i += 7) {
    ShareRegion const& region = work.regions[i];
    std::byte& byte = world.files[region.src_file][region.src_offset_bytes + i % region.run_bytes];
    byte ^= std::byte{1} << i % 8;
    Digests const after = piece_shares(work, world.files);
    for (std::size_t s = 0; s < after.size(); ++s)
      EXPECT_EQ(after[s] != before[s], s == index(region.to));
    byte ^= std::byte{1} << i % 8;
  }
}

TEST(Digest, ObjectsCountBehindTheTensors) {
  Fixture const fixture(test::sample_models().front());
  SampleMesh const at = test::sample_meshes(false).front();
  World const world = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
  World source = world;
  std::vector<OpaqueCopy> const opaque{{0, 0, 3, 5, 17}, {0, 0, 0, 0, 0}};
  Plan const plan = make_plan(fixture.model, source.catalog, world.catalog, {}, opaque);
  ASSERT_EQ(plan.tensor_bytes.size(), fixture.model.tensors().size() + 2);
  Digests const sums = direct_digests(plan, source, 2, 1 << 20);
  EXPECT_EQ(sums[fixture.model.tensors().size()],
            crc64_by_tables(std::span(source.files[0]).subspan(3, 17)));
  EXPECT_EQ(sums.back(), 0U);
}

TEST(Digest, APlanWithoutThemHasNone) {
  Fixture const fixture(test::sample_models().front());
  SampleMesh const at = test::sample_meshes(false).front();
  World const world = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
  Plan const plan = make_plan(fixture.model, world.catalog, world.catalog, {.digests = false});
  EXPECT_TRUE(plan.shape_digests.empty());
  EXPECT_FALSE(plan.cells.empty());
}

TEST(Digest, MemoryForLessThanAnElementIsRefused) {
  Fixture const fixture(test::sample_models().front());
  SampleMesh const mesh{};
  World const source = test::make_world(fixture.model, fixture.local(mesh), mesh, DType::bf16);
  auto const embedding = fixture.model.find_tensor("embed");
  ASSERT_TRUE(embedding);
  OrderedBlocks blocks(fixture.model, source.catalog, *embedding);
  test::expect_refused(ErrorKind::resources, "one element needs ", [&] { blocks.next(7, 1); });
}

}  // namespace
}  // namespace reshard
