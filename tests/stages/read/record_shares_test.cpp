// The sums of zip records, gathered from whatever rounds read: whole only when every byte was there
// once, and then the record's CRC-32.

#include "stages/read/record_shares.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "core/base/hash/crc32.hpp"
#include "core/plan/cells/schedule.hpp"
#include "tests/support/plan_world.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

StoredRecord record(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) {
  return {file, offset, bytes, 0, 0, std::nullopt};
}

StoredRecords list_of(std::vector<StoredRecord> const& records) {
  StoredRecords list;
  for (StoredRecord const& one : records) list.push_back(one);
  return list;
}

struct Sum {
  std::uint32_t crc32 = 0;
  std::uint64_t covered = 0;
};

std::vector<Sum> sums_of(std::vector<RecordShare> const& shares,
                         std::vector<StoredRecord> const& records) {
  std::vector<Sum> sums;
  for (StoredRecord const& one : records) sums.push_back({crc32_of_zeros(one.size_bytes), 0});
  for (RecordShare const& share : shares) {
    sums[share.record].crc32 ^= share.crc32;
    sums[share.record].covered += share.covered;
  }
  return sums;
}

bool whole(Sum const& sum, StoredRecord const& record) {
  return sum.covered == covered_by(0, record.size_bytes);
}

TEST(RecordSums, PiecesInAnyOrderMakeTheWhole) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    Bytes const file = random_bytes(random, 5000);
    std::vector<StoredRecord> const records{
        record(1, 3000, 1500), record(1, 64, 1000 + random() % 1000), record(0, 0, 10)};
    RecordSums const sums(list_of(records));
    for (std::size_t const number : {0U, 1U}) {
      StoredRecord const& one = records[number];
      std::vector<std::uint64_t> cuts{0, one.size_bytes};
      for (std::size_t i = random() % 9; i > 0; --i)
        cuts.push_back(random() % (one.size_bytes + 1));
      std::ranges::sort(cuts);
      std::vector<std::size_t> order(cuts.size() - 1);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::shuffle(order, random);
      std::vector<RecordShare> shares;
      for (std::size_t const i : order)
        sums.add(1, one.offset_bytes + cuts[i],
                 std::span(file).subspan(one.offset_bytes + cuts[i], cuts[i + 1] - cuts[i]),
                 shares);
      Sum const sum = sums_of(shares, records)[number];
      EXPECT_TRUE(whole(sum, one));
      EXPECT_EQ(sum.crc32, crc32(std::span(file).subspan(one.offset_bytes, one.size_bytes)));
    }
  }
}

TEST(RecordSums, AGapThatAnOverlapMakesUpForIsSeen) {
  Bytes const file(1000, std::byte{1});
  std::vector<StoredRecord> const records{record(0, 0, 1000)};
  RecordSums const sums(list_of(records));
  std::vector<RecordShare> shares;
  auto const add = [&](std::size_t begin, std::size_t end) {
    sums.add(0, begin, std::span(file).subspan(begin, end - begin), shares);
  };
  add(0, 600);
  add(500, 900);  // 1000 bytes altogether
  EXPECT_FALSE(whole(sums_of(shares, records)[0], records[0]));
  shares.clear();
  add(0, 600);
  add(600, 999);
  EXPECT_FALSE(whole(sums_of(shares, records)[0], records[0]));
  add(999, 1000);
  EXPECT_TRUE(whole(sums_of(shares, records)[0], records[0]));
  add(0, 1000);
  EXPECT_FALSE(whole(sums_of(shares, records)[0], records[0]));
}

TEST(RecordSums, WhatLiesInNoRecordAddsNothing) {
  Bytes const file(1000);
  std::vector<StoredRecord> const records{record(0, 100, 100), record(2, 0, 50)};
  RecordSums const sums(list_of(records));
  std::vector<RecordShare> shares;
  sums.add(0, 0, std::span(file).first(100), shares);
  sums.add(0, 50, std::span(file).first(100), shares);
  sums.add(0, 150, std::span(file).first(51), shares);
  sums.add(1, 100, std::span(file).first(100), shares);
  sums.add(3, 0, std::span(file).first(10), shares);
  EXPECT_TRUE(shares.empty());
}

TEST(RecordSums, StridedRunsInterleave) {
  std::mt19937_64 random(3);
  Bytes const file = random_bytes(random, 6 * 900);
  std::vector<StoredRecord> const records{record(0, 0, file.size())};
  RecordSums const sums(list_of(records));
  std::vector<RecordShare> shares;
  for (std::uint64_t const offset : {0U, 300U, 600U}) {
    DigestPart part;
    part.run_bytes = 300;
    part.from = part.offset_bytes = offset;
    part.dims = {{6, 900, 0}};
    sums.add(part, file.data(), shares);
  }
  EXPECT_TRUE(whole(sums_of(shares, records)[0], records[0]));
  EXPECT_EQ(sums_of(shares, records)[0].crc32, crc32(file));
}

TEST(RecordSums, ATransposedTensorIsOneRunOfItsFile) {
  std::mt19937_64 random(4);
  Bytes const file = random_bytes(random, 40 * 30 * 2);
  std::vector<StoredRecord> const records{record(0, 0, file.size())};
  DigestPart part;
  part.run_bytes = 2;
  part.dims = {{30, 2, 0}, {40, 60, 0}};
  std::vector<RecordShare> shares;
  RecordSums(list_of(records)).add(part, file.data(), shares);
  EXPECT_TRUE(whole(sums_of(shares, records)[0], records[0]));
  EXPECT_EQ(sums_of(shares, records)[0].crc32, crc32(file));
}

TEST(RecordSums, RunsThatAreNotWorthTheirTimeLeaveTheRecordIncomplete) {
  Bytes const file(4000);
  std::vector<StoredRecord> const records{record(0, 0, file.size())};
  std::vector<RecordShare> shares;
  for (std::uint64_t const offset : {0U, 20U}) {
    DigestPart part;
    part.run_bytes = 20;
    part.from = part.offset_bytes = offset;
    part.dims = {{100, 40, 0}};
    RecordSums(list_of(records)).add(part, file.data(), shares);
  }
  EXPECT_FALSE(whole(sums_of(shares, records)[0], records[0]));
}

/// A model with both of its sides' maps.
struct Fixture {
  MapFile core = test::map_file("mcore");
  MapFile family;
  Model model;
  Fixture(test::SampleModel const& sample)
      : family(test::map_file(sample.family)),
        model(family, core, {sample.config, "config.json", 0}) {
    apply_family(model, Side(model, family, {}));
  }
  Side local(test::SampleMesh const& at) const {
    return Side(model, core,
                {true, at.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "[target] layout"});
  }
};

/// One record for each stored tensor of a world.
std::vector<StoredRecord> records_of(test::World const& world) {
  constexpr std::uint64_t gap = 24;  // of the world's files
  std::vector<StoredRecord> records;
  BlobTable const& blobs = world.catalog.blobs;
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    bool const last = i + 1 == blobs.size() || blobs[i + 1].file != blobs[i].file;
    std::uint64_t const end =
        last ? world.files[blobs[i].file].size() : blobs[i + 1].offset_bytes - gap;
    records.push_back(record(blobs[i].file, blobs[i].offset_bytes, end - blobs[i].offset_bytes));
  }
  return records;
}

void add(RoundWork const& round, test::Files const& files, RecordSums const& sums,
         std::vector<RecordShare>& shares) {
  std::vector<std::byte> staging(round.staging_bytes, std::byte{0xee});
  for (Extent const& read : round.reads)
    std::memcpy(staging.data() + read.at, files.at(read.file).data() + read.offset_bytes,
                read.bytes);
  for (DigestPart const& part : round.digests) sums.add(part, staging.data(), shares);
}

/// How many records of a world are whole; their CRC-32 must be right.
std::size_t whole_records(std::vector<RecordShare> const& shares, test::World const& world) {
  std::vector<StoredRecord> const records = records_of(world);
  std::vector<Sum> const sums = sums_of(shares, records);
  std::size_t count = 0;
  for (std::size_t r = 0; r < records.size(); ++r) {
    if (!whole(sums[r], records[r])) continue;
    ++count;
    EXPECT_EQ(sums[r].crc32, crc32(std::span(world.files[records[r].file])
                                       .subspan(records[r].offset_bytes, records[r].size_bytes)));
  }
  return count;
}

/// How many records rounds read whole in a conversion of every sample, and how many there are.
/// `padding`: so many rows of the vocabulary mean nothing.
std::pair<std::size_t, std::size_t> whole_and_all(Index padding) {
  PlanLimits const limits{2048, 32768};
  std::size_t wholes = 0;
  std::size_t records = 0;
  std::vector<test::SampleModel> const samples = test::sample_models();
  for (std::size_t number = 0; number < samples.size(); number += 4) {
    Fixture fixture(samples[number]);
    int const vocab = fixture.model.axes().find("vocab");
    if (vocab >= 0)
      fixture.model.mean_only(static_cast<AxisId>(vocab),
                              fixture.model.axes()[static_cast<AxisId>(vocab)].size - padding);
    auto const meshes = test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    test::SampleMesh const& from = meshes[meshes.size() / 2];
    test::World const source =
        test::make_world(fixture.model, fixture.local(from), from, DType::f32);
    test::World const target =
        test::make_world(fixture.model, fixture.local(meshes.front()), meshes.front(), DType::f32);
    Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, limits);
    std::vector<StoredRecord> const all = records_of(source);
    RecordSums const sums(list_of(all));
    std::vector<RecordShare> direct;
    std::vector<RecordShare> exchanged;
    for (int rank = 0; rank < 3; ++rank) {
      auto next = direct_rounds(plan, cells_of_rank(plan, rank, 3), limits.staging_bytes);
      while (auto const round = next()) add(*round, source.files, sums, direct);
      ExchangeRounds rounds(plan, balanced_readers(plan, source.files.size(), 3), rank, 3,
                            4 * limits.staging_bytes);
      while (auto const round = rounds.next()) add(*round, source.files, sums, exchanged);
    }
    std::size_t const count = whole_records(direct, source);
    EXPECT_EQ(whole_records(exchanged, source), count);
    wholes += count;
    records += all.size();
  }
  return {wholes, records};
}

TEST(RecordSums, RoundsOfAnyRanksMakeRecordsWhole) {
  auto const [wholes, records] = whole_and_all(0);
  EXPECT_EQ(whole_and_all(5).first, wholes);  // padding travels along
  // The others are replicas, or lie between others in runs that are too short in models as small as
  // these.
  EXPECT_GT(wholes, records / 4);
}

}  // namespace
}  // namespace reshard
