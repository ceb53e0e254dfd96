// What one format promises, all promise: every test here runs over all formats.

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/formats/format.hpp"
#include "core/formats/model_files.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "stages/plan/identity_plan.hpp"
#include "stages/plan/source/facts/source_facts.hpp"
#include "tests/core/formats/contents.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/sample_checkpoints.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/written_target.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using test::SampleCheckpoint;
using test::SampleMaker;
using test::SampleTensor;

/// Everything that a checkpoint says, but for who read which file.
std::string text_of(Checkpoint const& c) {
  std::string text =
      fmt::format("{} {} {} {} {} {} {} [{}]\n", fmt::ptr(c.format), static_cast<int>(c.names),
                  static_cast<int>(c.storage), c.root.string(), c.folder.string(), c.place,
                  c.summary, fmt::join(c.warnings, "; "));
  for (std::size_t f = 0; f < c.files.size(); ++f)
    text += fmt::format("{} {} {} {} {}\n", c.files[f].string(), c.stamps.taken.at(f).bytes,
                        c.stamps.taken.at(f).mtime_ns, c.stamps.taken.at(f).ctime_ns,
                        c.stamps.taken.at(f).inode);
  for (StoredRecord const& r : c.records)
    text += fmt::format("{} {} {} {} {} {}\n", r.file, r.offset_bytes, r.size_bytes,
                        r.archive_offset_bytes, r.archive_bytes, r.crc32.value_or(0));
  for (StoredTensor const& tensor : c.stored.tensors) {
    text +=
        fmt::format("{} {} [{}]", tensor.name, name(tensor.dtype), fmt::join(tensor.shape, " "));
    for (std::size_t i = tensor.first_chunk; i < tensor.first_chunk + tensor.chunk_count; ++i) {
      StoredChunk const& chunk = c.stored.chunks[i];
      text += fmt::format(" [{}]+[{}] at {} {} {} {}", fmt::join(c.stored.offsets(chunk), " "),
                          fmt::join(c.stored.sizes(chunk), " "), chunk.item.file,
                          chunk.item.offset_bytes, chunk.item.size_bytes,
                          c.stored.payload_offset_bytes(i));
    }
    text += "\n";
  }
  for (auto const& [chunk, strides] : c.stored.strides)
    text += fmt::format("{}: {}\n", chunk, fmt::join(strides, " "));
  for (StoredObject const& object : c.stored.objects)
    text += fmt::format("{} {} {}\n", object.name, object.item.file, object.item.offset_bytes);
  text += fmt::format("{} | {} | {} | {}\n", c.shares.mesh.text(), c.shares.file_mesh.text(),
                      c.shares.layout, c.shares.chunks_per_file);
  for (SharePlace const& p : c.shares.places)
    text += fmt::format("{} [{}] [{}] {} {} {} {} {} {}\n", p.file, fmt::join(p.at, " "),
                        fmt::join(p.file_at, " "), p.chunk, p.chunk_in_file, p.label,
                        p.first_tensor, p.tensor_count, p.alike.value_or(c.shares.places.size()));
  for (LogicalLabels const& labels : c.logical.labels)
    text += fmt::format("{} {}\n", fmt::join(labels.axes, " "), labels.domain);
  text += fmt::format("{} {} {} {} [{}] [{}] [{}]\n", c.run.args.dump(), c.model.config.dump(),
                      c.run.iteration.value_or(-1), c.run.stated_iteration,
                      fmt::join(c.chunked.side_files, " "), fmt::join(c.index.promised, " "),
                      fmt::join(c.state.inventory.others, " "));
  return text + fmt::format("{} {} {}\n", c.state.inventory.optimizer.example,
                            c.state.inventory.rng.example, fmt::join(c.shares.defects, "; "));
}

/// Of a place with a table that another one has.
void expect_alike(Checkpoint const& checkpoint, SharePlace const& place) {
  SharePlace const& first = checkpoint.shares.places.at(*place.alike);
  EXPECT_FALSE(first.alike);
  ASSERT_EQ(first.tensor_count, place.tensor_count);
  StoredTable const& stored = checkpoint.stored;
  for (std::size_t t = 0; t < place.tensor_count; ++t) {
    StoredTensor const& here = stored.tensors[place.first_tensor + t];
    StoredTensor const& there = stored.tensors[first.first_tensor + t];
    EXPECT_EQ(here.name, there.name);
    EXPECT_EQ(here.dtype, there.dtype);
    EXPECT_EQ(here.shape, there.shape);
    EXPECT_EQ(stored.chunks[here.first_chunk].item.offset_bytes,
              stored.chunks[there.first_chunk].item.offset_bytes);
  }
}

class Conformance : public testing::TestWithParam<SampleMaker> {
 protected:
  SampleCheckpoint make() const { return GetParam().make(folder()); }
  fs::path folder() const { return scratch_.path() / "sample"; }
  Format const& format() const { return *GetParam().format; }

  ScratchFolder scratch_{"conformance_" + GetParam().name};
};

INSTANTIATE_TEST_SUITE_P(Formats, Conformance, testing::ValuesIn(test::sample_makers()),
                         [](auto const& chosen) { return chosen.param.name; });

TEST(Formats, HaveASampleEach) {
  std::set<Format const*> sampled;
  for (SampleMaker const& maker : test::sample_makers()) sampled.insert(maker.format);
  for (Format const* one : all_formats()) EXPECT_TRUE(sampled.contains(one)) << one->name();
}

// --- recognition
// ---------------------------------------------------------------------------------------------------

TEST_P(Conformance, KnowsItsOwnAndNoOther) {
  make();
  EXPECT_TRUE(format().probe(folder()));
  for (SampleMaker const& other : test::sample_makers()) {
    if (other.format->family() == format().family() || !other.format->probe(folder())) continue;
    // By names alone it may look like theirs; then their files' beginnings tell.
    EXPECT_EQ(other.format->refined(folder()).family(), format().family()) << other.name;
  }
}

TEST_P(Conformance, KnowsNothingInAnEmptyFolder) {
  fs::create_directories(folder());
  EXPECT_FALSE(format().probe(folder()));
  EXPECT_FALSE(format().probe(scratch_.path() / "absent"));
  write_text_file(scratch_.path() / "file", "text");
  EXPECT_FALSE(format().probe(scratch_.path() / "file"));
  EXPECT_EQ(format().why_incomplete(folder()).find('\n'), std::string::npos);
}

TEST_P(Conformance, IsChosenForItsOwn) {
  make();
  EXPECT_EQ(choose_format(folder()).family(), format().family());
  EXPECT_EQ(choose_format(folder(), format().id()).family(), format().family());
  EXPECT_EQ(test::opened(folder()).format, &format());
  EXPECT_EQ(enclosing_checkpoint(folder() / "report.json").has_value(), !format().yields());
}

TEST_P(Conformance, IsFoundBelowARootWithATracker) {
  if (!GetParam().has_tracker) GTEST_SKIP() << "its saves have no root";
  fs::path const root = scratch_.path() / "root";
  fs::create_directories(root);
  SampleCheckpoint const sample = GetParam().make(root / "iter_0000007");
  write_text_file(root / "latest_checkpointed_iteration.txt", "7");
  EXPECT_EQ(choose_format(root).family(), format().family());
  Checkpoint const checkpoint = test::opened(root);
  EXPECT_EQ(checkpoint.format, &format());
  EXPECT_EQ(checkpoint.root, root);
  EXPECT_EQ(checkpoint.folder, root / "iter_0000007");
  EXPECT_EQ(checkpoint.run.iteration, 7);
  test::expect_same(test::contents(checkpoint), test::by_name(sample.tensors));
}

// --- opening
// -------------------------------------------------------------------------------------------------------

TEST_P(Conformance, ReadsTheBytesThatWereWritten) {
  SampleCheckpoint const sample = make();
  test::expect_same(test::contents(test::opened(folder())), test::by_name(sample.tensors));
}

TEST_P(Conformance, IsTheSameForAnyNumberOfRanks) {
  make();
  std::string const alone = text_of(test::opened(folder()));
  for (int const count : {1, 2, 3, 5}) {
    std::vector<std::string> seen(static_cast<std::size_t>(count));
    std::vector<std::vector<int>> readers(seen.size());
    auto const errors = test::RankThreads(count).run([&](HeaderExchange const& exchange) {
      Checkpoint const checkpoint = open_checkpoint(folder(), FormatId::automatic, {}, exchange);
      seen[static_cast<std::size_t>(exchange.rank())] = text_of(checkpoint);
      readers[static_cast<std::size_t>(exchange.rank())] = checkpoint.stamps.rank;
    });
    for (auto const& error : errors) ASSERT_FALSE(error) << error->sentence();
    for (std::string const& text : seen) EXPECT_EQ(text, alone) << count << " ranks";
    for (auto const& by : readers) {
      EXPECT_EQ(by, readers.front());
      for (int const rank : by) EXPECT_TRUE(rank >= 0 && rank < count);
    }
  }
}

TEST_P(Conformance, StampsItsFiles) {
  SampleCheckpoint const sample = make();
  Checkpoint const checkpoint = test::opened(folder());
  std::vector<fs::path> files = checkpoint.files;
  ASSERT_EQ(checkpoint.stamps.taken.size(), files.size());
  ASSERT_EQ(checkpoint.stamps.rank.size(), files.size());
  for (std::size_t f = 0; f < files.size(); ++f)
    EXPECT_EQ(checkpoint.stamps.taken[f], File::open_for_reading(files[f]).stamp());
  std::ranges::sort(files);
  EXPECT_EQ(files, sample.files);
}

TEST_P(Conformance, SaysWhatItsStorageSays) {
  make();
  Checkpoint const checkpoint = test::opened(folder());
  StoredTable const& stored = checkpoint.stored;
  ASSERT_TRUE(stored.payload_offsets.empty() ||
              stored.payload_offsets.size() == stored.chunks.size());
  bool const shares = checkpoint.storage == Storage::shares;
  EXPECT_EQ(checkpoint.shares.mesh.axes().empty(), !shares);
  EXPECT_EQ(checkpoint.shares.file_mesh.axes().empty(), !shares);
  EXPECT_EQ(checkpoint.shares.layout.empty(), !shares);
  EXPECT_EQ(checkpoint.shares.places.empty(), !shares);
  EXPECT_EQ(checkpoint.logical.labels.size(),
            checkpoint.names == NameOwner::logical ? stored.tensors.size() : 0U);
  for (StoredTensor const& tensor : stored.tensors)
    EXPECT_TRUE(tensor.chunk_count == 1 || checkpoint.storage == Storage::chunks)
        << tensor.name.text();
  std::size_t next = 0;
  std::set<std::string> labels;
  for (SharePlace const& place : checkpoint.shares.places) {
    EXPECT_EQ(place.first_tensor, next);
    next += place.tensor_count;
    EXPECT_TRUE(labels.insert(place.label).second) << place.label;
    EXPECT_EQ(checkpoint.shares.mesh.place(checkpoint.shares.mesh.number(place.at)), place.at);
    EXPECT_LT(checkpoint.shares.file_mesh.number(place.file_at),
              checkpoint.shares.file_mesh.places());
    for (MeshAxis const& axis : checkpoint.shares.file_mesh.axes())
      EXPECT_EQ(checkpoint.shares.file_mesh.coordinate(place.file_at, axis.name),
                checkpoint.shares.mesh.coordinate(place.at, axis.name));
    EXPECT_LT(place.chunk_in_file, static_cast<int>(checkpoint.shares.chunks_per_file));
    for (std::size_t t = place.first_tensor; t < next; ++t)
      EXPECT_EQ(stored.chunks_of(stored.tensors[t]).front().item.file, place.file);
    if (place.alike) expect_alike(checkpoint, place);
  }
  EXPECT_EQ(next, shares ? stored.tensors.size() : 0U);
}

TEST_P(Conformance, SortsEveryTensorOnce) {
  for (auto const make_one : {GetParam().make, GetParam().make_with_state}) {
    if (make_one == nullptr) continue;
    fs::remove_all(folder());
    make_one(folder());
    Checkpoint const checkpoint = test::opened(folder());
    StoredView const view = view_of(checkpoint);
    if (checkpoint.storage == Storage::shares) {
      EXPECT_TRUE(view.weights.empty()) << "names repeat";
      continue;
    }
    ASSERT_EQ(view.state_tables.size(), view.states.size());
    std::vector<std::size_t> places;
    for (auto const& [name, at] : view.weights) places.push_back(at);
    for (StoredView::Table const& table : view.state_tables)
      for (auto const& [name, at] : table) {
        EXPECT_TRUE(view.weights.contains(name)) << "state of no weight: " << name;
        places.push_back(at);
      }
    std::ranges::sort(places);
    std::vector<std::size_t> all(checkpoint.stored.tensors.size());
    for (std::size_t t = 0; t < all.size(); ++t) all[t] = t;
    EXPECT_EQ(places.size() + view.fixed_state.size() + view.unread.size(), all.size());
    EXPECT_EQ(places, all);
  }
}

TEST_P(Conformance, CutsAPrefixOff) {
  make();
  Checkpoint const checkpoint = test::opened(folder());
  if (checkpoint.storage == Storage::shares) GTEST_SKIP() << "its names are Megatron's own";
  std::string const prefix = "model.module.decoder.layers.";
  StoredView const view = format().view(checkpoint, prefix);
  for (auto const& [name, at] : view.weights)
    EXPECT_EQ(checkpoint.stored.tensors[at].name, prefix + name);
  EXPECT_EQ(view.weights.size() + view.unread.size(), checkpoint.stored.tensors.size());
}

// --- descriptions
// --------------------------------------------------------------------------------------------------

TEST_P(Conformance, DescribesWhatIsThere) {
  make();
  Inspection const found = format().describe(folder(), {});
  EXPECT_TRUE(found.sound) << found.text;
  ASSERT_NE(found.json.find("path"), nullptr);
  EXPECT_EQ(*found.json.find("path")->text(), folder().string());
  ASSERT_NE(found.json.find("format"), nullptr);
  EXPECT_EQ(*found.json.find("format")->text(), format().name());
  ASSERT_NE(found.json.find("mismatches"), nullptr);
  EXPECT_TRUE(found.json.find("mismatches")->items()->empty());
  EXPECT_TRUE(found.mismatches.empty());
  EXPECT_EQ(found.text.find("mismatches"), std::string::npos) << "inspect() adds them";
  EXPECT_NE(found.text.find(folder().string()), std::string::npos);
  EXPECT_NE(found.text.find(format().name()), std::string::npos);
}

TEST_P(Conformance, SaysWhyASaveIsIncomplete) {
  SampleCheckpoint const sample = make();
  EXPECT_EQ(format().why_incomplete(folder()), "");
  if (sample.written_last.empty()) return;  // it has no file that is written last
  fs::remove(sample.written_last);
  EXPECT_NE(format().why_incomplete(folder()), "");
  auto const refused = capture([&] { test::opened(folder()); });
  ASSERT_TRUE(refused) << "a save that was cut short was opened";
  EXPECT_EQ(refused->kind(), ErrorKind::source);
}

TEST_P(Conformance, FindsTheFilesOfTheModel) {
  make();
  Checkpoint const checkpoint = test::opened(folder());
  auto const files = format().model_files(checkpoint);
  ASSERT_TRUE(files);
  EXPECT_EQ(files->config.dump(), R"({"model_type": "sample"})");
  EXPECT_EQ(files_of(checkpoint)->config, files->config);
}

/// A plan takes the config.json of model_files(): a reader need not repeat it.
TEST_P(Conformance, GivesAPlanTheConfigOfTheModel) {
  make();
  Checkpoint checkpoint = test::opened(folder());
  if (checkpoint.names != NameOwner::family) GTEST_SKIP() << "it describes its model itself";
  if (!GetParam().config_inside) checkpoint.model.config = Json();
  SourceModel facts;
  read_facts(checkpoint, {}, facts);
  EXPECT_EQ(facts.facts.config.dump(), R"({"model_type": "sample"})");
}

TEST_P(Conformance, HasNoFilesOfAModelWhereThereAreNone) {
  make();
  fs::remove(folder() / "config.json");
  fs::remove_all(folder() / huggingface::carried_name);
  auto const files = format().model_files(test::opened(folder()));
  EXPECT_EQ(files.has_value() && !files->config.is_null(), GetParam().config_inside);
}

// --- state
// ---------------------------------------------------------------------------------------------------------

StateInventory inventory_of(Checkpoint const& checkpoint) {
  return checkpoint.format->inventory(checkpoint, view_of(checkpoint));
}

TEST_P(Conformance, HoldsNoStateWhereThereIsNone) {
  make();
  StateInventory const state = inventory_of(test::opened(folder()));
  EXPECT_FALSE(state.optimizer) << state.optimizer.example;
  EXPECT_FALSE(state.rng) << state.rng.example;
  EXPECT_TRUE(state.slots.empty());
  EXPECT_TRUE(state.others.empty()) << fmt::format("{}", fmt::join(state.others, ", "));
}

TEST_P(Conformance, HoldsTheStateThatIsThere) {
  if (GetParam().make_with_state == nullptr) GTEST_SKIP() << "the format holds weights alone";
  GetParam().make_with_state(folder());
  StateInventory const state = inventory_of(test::opened(folder()));
  EXPECT_EQ(static_cast<bool>(state.optimizer), GetParam().has_optimizer);
  EXPECT_EQ(static_cast<bool>(state.rng), GetParam().has_rng);
  EXPECT_EQ(!state.slots.empty(), state.optimizer.form == StateForm::by_weight);
  EXPECT_TRUE(state.optimizer || state.rng || !state.others.empty());
  for (HeldState const& held : {state.optimizer, state.rng}) EXPECT_EQ(held.example.empty(), !held);
}

// --- plans
// ---------------------------------------------------------------------------------------------------------

/// Into a DCP folder under the names it has, and read again: with the same bytes, and complete for
/// whoever reads it next.
TEST_P(Conformance, IsPlannedAndWrittenUnderItsNames) {
  for (auto const make_one : {GetParam().make, GetParam().make_with_state}) {
    if (make_one == nullptr) continue;
    fs::remove_all(folder());
    fs::remove_all(scratch_.path() / "target");
    SampleCheckpoint const sample = make_one(folder());
    Checkpoint const checkpoint = test::opened(folder());
    if (checkpoint.storage == Storage::shares) GTEST_SKIP() << "only a map puts shares together";
    PlanRequest request;
    request.target.format = FormatId::dcp;
    request.read.map = "none";
    request.read.foreign_classes =
        ForeignClasses::drop;  // objects of samples are no files of torch
    JobPlan const plan = make_identity_plan(checkpoint, request, PlanLimits{});
    fs::path const target = scratch_.path() / "target";
    test::write_target(plan, test::bytes_of_files(checkpoint.files), target);
    Checkpoint const copy = open_checkpoint(target, FormatId::dcp, {}, LoneReader());
    EXPECT_EQ(copy.format->id(), FormatId::dcp);
    test::expect_same(test::contents(copy), test::by_name(sample.tensors));
    JobPlan const read = identity_catalogue(copy, PlanRequest());
    EXPECT_EQ(read.model->tensors().size(), plan.model->tensors().size());
    auto const fault = capture([&] { prove_source(*read.model, read.source); });
    EXPECT_FALSE(fault) << fault->sentence();
  }
}

}  // namespace
}  // namespace reshard
