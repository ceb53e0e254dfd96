#include <gtest/gtest.h>

#include "core/formats/headers/object_gate.hpp"
#include "core/formats/megatron/writer.hpp"
#include "core/formats/run/run_record.hpp"

namespace reshard {
namespace {

using pickle::Document;
using pickle::NodeId;
using Lines = std::vector<std::string>;

NodeId object_of(Document& document, std::string_view module, std::string_view name) {
  return document.add_object(module, name, document.add_dict());
}

/// {"args": Namespace(layers=4, hook=…, plain=…), "note": …, "optimizer": …, "opt_param_scheduler":
/// …}
RunRecord record_with(std::string_view module, std::string_view name) {
  auto torch = std::make_shared<TorchFile>();
  Document& document = torch->document;
  NodeId const args = document.add_object("argparse", "Namespace", document.add_dict());
  document.set(args, "layers", document.add_int(4));
  document.set(args, "hook", document.add_list({object_of(document, module, name)}));
  document.set(args, "plain", document.add_object("argparse", "Namespace", document.add_dict()));
  document.root = document.add_dict();
  document.set(document.root, "args", args);
  document.set(document.root, "note", object_of(document, module, name));
  document.set(document.root, "optimizer", document.add_dict());
  document.set(document.root, "opt_param_scheduler", object_of(document, module, name));
  RunRecord record;
  record.torch = std::move(torch);
  record.file = "common.pt";
  record.all = true;
  return record;
}

std::string refusal(RunRecord const& record) {
  try {
    check_carried(record, record.document().root, "common state");
    return {};
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
}

Lines settled(RunRecord& record, ForeignClasses choice) {
  Lines warnings;
  settle_foreign_classes(record, choice, warnings);
  return warnings;
}

Lines keys_of(RunRecord const& record, NodeId dict) {
  Lines keys;
  for (auto const& [key, value] : record.document().members(dict)) keys.push_back(key);
  return keys;
}

TEST(ForeignClasses, AClassOfAnotherPackageIsRefusedOrKept) {
  RunRecord record = record_with("our_framework", "Settings");
  EXPECT_EQ(settled(record, ForeignClasses::refuse), Lines());
  EXPECT_NE(
      refusal(record).find(
          R"(common.pt: 'common state' holds "our_framework.Settings", which is not known to be plain data)"),
      std::string::npos)
      << refusal(record);
  EXPECT_FALSE(may_copy_file(record));
  EXPECT_EQ(settled(record, ForeignClasses::keep), Lines());
  EXPECT_EQ(refusal(record), "");
  EXPECT_TRUE(may_copy_file(record));
}

TEST(ForeignClasses, AFunctionOfTheLibraryIsNeverKept) {
  RunRecord record = record_with("os", "system");
  for (ForeignClasses const choice : {ForeignClasses::refuse, ForeignClasses::keep}) {
    EXPECT_EQ(settled(record, choice), Lines());
    EXPECT_NE(refusal(record).find(R"(holds "os.system", expected plain data)"), std::string::npos)
        << refusal(record);
    EXPECT_FALSE(may_copy_file(record));
  }
}

TEST(ForeignClasses, WhatHoldsThemIsLeftOutAndSaid) {
  RunRecord record = record_with("os", "system");
  EXPECT_EQ(
      settled(record, ForeignClasses::drop),
      (Lines{
          R"(common.pt: left out (model.foreign_classes = "drop"): args.hook ("os.system"), note ("os.system"), opt_param_scheduler ("os.system"))"}));
  EXPECT_EQ(refusal(record), "");
  EXPECT_FALSE(may_copy_file(record));
  EXPECT_EQ(keys_of(record, record.document().root), (Lines{"args", "optimizer"}));
  EXPECT_EQ(keys_of(record, megatron::find_args(record.document())), (Lines{"layers", "plain"}));
}

TEST(ForeignClasses, OfAShardOnlyWhatIsCarriedIsLeftOut) {
  RunRecord record = record_with("os", "system");
  record.all = false;
  settled(record, ForeignClasses::drop);
  EXPECT_EQ(keys_of(record, record.document().root), (Lines{"args", "note", "optimizer"}));
}

TEST(ForeignClasses, NothingIsCopiedWhereNothingIsLeftOut) {
  RunRecord record = record_with("argparse", "Namespace");
  EXPECT_EQ(settled(record, ForeignClasses::drop), Lines());
  EXPECT_FALSE(record.edited);
  EXPECT_TRUE(may_copy_file(record));
}

class Gate : public testing::Test {
 protected:
  Gate() {
    source.files = {"a.distcp"};
    source.stored.objects = {
        {"plain", {0, 0, 9}}, {"ours", {0, 9, 9}}, {"evil", {0, 18, 9}}, {"broken", {0, 27, 9}}};
    source.chunked.looks = {
        {}, {{"our.C", true}, ""}, {{"os.system", false}, ""}, {{}, "it is not a zip archive."}};
  }
  /// What each object meets: "in", "out" or the refusal.
  Lines verdicts() {
    ObjectGate gate(source, request);
    Lines result;
    for (StoredObject const& object : source.stored.objects) try {
        result.emplace_back(gate.admits(object) ? "in" : "out");
      } catch (Error const& error) {
        result.push_back(error.sentence().substr(0, error.sentence().find(". ")));
      }
    gate.warn(warnings);
    return result;
  }
  Checkpoint source;
  PlanRequest request;
  Lines warnings;
  std::string const evil =
      R"(a.distcp: "evil" at byte 18 holds "os.system", expected plain data; loading the target would import and run it)";
  std::string const broken =
      R"(a.distcp: "broken" at byte 27: the object cannot be checked: it is not a zip archive)";
};

TEST_F(Gate, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(
      verdicts(),
      (Lines{
          "in",
          R"(a.distcp: "ours" at byte 9 holds "our.C", which is not known to be plain data: loading the target would import and run it)",
          evil, broken}));
}

TEST_F(Gate, KeepsClassesOfOtherPackagesAlone) {
  request.read.foreign_classes = ForeignClasses::keep;
  EXPECT_EQ(verdicts(), (Lines{"in", "in", evil, broken}));
}

TEST_F(Gate, LeavesOutWithAWarning) {
  request.read.foreign_classes = ForeignClasses::drop;
  EXPECT_EQ(verdicts(), (Lines{"in", "out", "out", "out"}));
  EXPECT_EQ(
      warnings,
      (Lines{
          R"(3 objects are left out (model.foreign_classes = "drop"): "ours" ("our.C"), "evil" ("os.system"), "broken" (cannot be read))"}));
}

TEST_F(Gate, DoesNotLookWhereTheJobSaysSo) {
  request.read.objects_unread = true;
  EXPECT_EQ(verdicts(), (Lines{"in", "in", "in", "in"}));
}

}  // namespace
}  // namespace reshard
